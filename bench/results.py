"""What a part of the benchmark has measured, and the file that keeps it: `docs/performance/<part>.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.figures import Ratio, Spread, Summary, compare, summarise
from bench.rounds import Round

OURS = "ours"
_DIGITS = 5


@dataclass(slots=True)
class Results:
    """Rounds of one part so far, and which tables were found to hold what was produced."""

    part: str
    command: str
    rounds: list[Round] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)

    def of(self, work: str, system: str, batch_messages: int) -> list[Round]:
        """The rounds of one system, work and batch size, in order."""
        wanted = (work, system, batch_messages)
        return [each for each in self.rounds if (each.work, each.system, each.batch_messages) == wanted]

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """Work, system and batch size of all rounds, each once."""
        return list(dict.fromkeys((r.work, r.system, r.batch_messages) for r in self.rounds))

    def summaries(self) -> list[Summary]:
        """One per work, system and batch size."""
        return [summarise(self.of(*key)) for key in self.keys]

    def ratios(self) -> Iterator[Ratio]:
        """Ours over all others of the same work and batch size, other ones of ours among them."""
        for work, system, size in self.keys:
            for other_work, peer, other_size in self.keys:
                if system.startswith(OURS) and peer != system and (other_work, other_size) == (work, size):
                    yield compare(self.of(work, system, size), self.of(work, peer, size))

    @property
    def others_share(self) -> Spread | None:
        """The share of the machine that others took, by round."""
        shares = [each.others_share for each in self.rounds if each.others_share is not None]
        return Spread.of(shares) if shares else None

    def document(self) -> dict[str, Any]:
        """All that is kept."""
        others = self.others_share
        return {
            **heading(self.part, self.command),
            "others_share": asdict(others) if others else None,
            "summaries": [asdict(summary) for summary in self.summaries()],
            "ratios": [asdict(ratio) for ratio in self.ratios()],
            "rounds": [_round(each) for each in self.rounds],
            "checked": self.checked,
        }


def heading(part: str, command: str) -> dict[str, Any]:
    """What stands at the top of every part's file."""
    return {"part": part, "command": command, "machine": machine.facts()}


def save(document: Mapping[str, Any], directory: Path) -> Path:
    """Write a part's file, whole or not at all; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{document['part']}.json"
    waiting = path.with_suffix(".json.new")
    waiting.write_text(in_lines(rounded(document)), "utf-8")
    waiting.replace(path)
    return path


def in_lines(document: Mapping[str, Any]) -> str:
    """A document as JSON, with a line for each of its values, and for each record of a list."""
    values = (f"{json.dumps(name)}: {_in_lines(value)}" for name, value in document.items())
    return "{\n" + ",\n".join(values) + "\n}\n"


def _in_lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f" {json.dumps(record)}" for record in value) + "\n]"
    return json.dumps(value)


def load(directory: Path) -> dict[str, Any]:
    """The documents of all parts that were measured, by part."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(directory.glob("*.json"))}


def rounded(value: Any) -> Any:
    """The same with five digits: more of a measured time say nothing."""
    match value:
        case bool():
            return value
        case float() if value and math.isfinite(value):
            digits = _DIGITS - 1 - math.floor(math.log10(abs(value)))
            return round(value, digits) if digits > 0 else float(round(value))
        case Mapping():
            return {name: rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [rounded(each) for each in value]
    return value


def _round(each: Round) -> dict[str, Any]:
    return {
        "work": each.work,
        "system": each.system,
        "batch_messages": each.batch_messages,
        "messages": each.messages,
        "messages_per_second": each.messages_per_second,
        "others_share": each.others_share,
        "bytes_written": each.bytes_written,
        "peaks_mib": each.peaks_mib,
        "planned_ms": [batch.planned_ms for batch in each.batches],
        "whole_ms": [batch.whole_ms for batch in each.batches],
    }
