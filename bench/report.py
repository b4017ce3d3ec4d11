"""What a benchmark says: a table on the terminal, the same as SVG, and all figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.figures import Ratio, Spread, Summary, compare, summarise
from bench.rounds import Round

WIDTH = 150
OURS = "ours"


@dataclass(slots=True)
class Results:
    """What a run has measured so far."""

    command: str
    machine: dict[str, str | int]
    raw: list[float] = field(default_factory=list)
    """Messages a second of the ceiling, one figure per round."""
    rounds: list[Round] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    """The tables that were found to hold what was produced."""

    def of(self, system: str, batch_messages: int) -> list[Round]:
        """The rounds of one system and one batch size, in order."""
        return [r for r in self.rounds if (r.system, r.batch_messages) == (system, batch_messages)]

    @property
    def keys(self) -> list[tuple[str, int]]:
        """System and batch size of all rounds, each once."""
        return list(dict.fromkeys((r.system, r.batch_messages) for r in self.rounds))

    def summaries(self) -> list[Summary]:
        """One per system and batch size."""
        return [summarise(self.of(*key)) for key in self.keys]

    def ratios(self) -> Iterator[Ratio]:
        """Ours over each peer, by batch size."""
        for system, size in self.keys:
            if system.startswith(OURS):
                for peer, peer_size in self.keys:
                    if peer_size == size and not peer.startswith(OURS):
                        yield compare(self.of(system, size), self.of(peer, size))

    @property
    def others_share(self) -> Spread | None:
        """The share of the machine that others took, by round."""
        shares = [r.others_share for r in self.rounds if r.others_share is not None]
        return Spread.of(shares) if shares else None


def show(results: Results, console: Console) -> None:
    """Print everything that a reader wants to see."""
    console.print(_facts(results))
    console.print(_summaries(results.summaries()))
    console.print(_ratios(list(results.ratios())))
    if results.raw:
        raw = Spread.of(results.raw)
        console.print(f"Bare consumers into Arrow, on the same cores: {_thousands(raw)} thousand messages/s.")
    console.print(f"Checked: {len(results.checked)} tables hold exactly what was produced.")


def save(results: Results, directory: Path) -> list[Path]:
    """Write `bench.json` and `bench.svg`; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    figures, picture = directory / "bench.json", directory / "bench.svg"
    figures.write_text(json.dumps(_document(results), indent=1) + "\n", "utf-8")
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere)
        show(results, console)
        console.save_svg(str(picture), title="make bench")
    return [figures, picture]


def _facts(results: Results) -> str:
    others = results.others_share
    taken = f"; others took {others.min:.0%} … {others.median:.0%} … {others.max:.0%} of it" if others else ""
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    return f"{results.command}\n{machine}{taken}"


def _summaries(summaries: Sequence[Summary]) -> Table:
    table = Table(title="Kafka → count per key → Delta, exactly once", title_justify="left")
    right = ("messages", "1,000 messages/s", "batches", "p50", "p95", "p99", "whole p50")
    for name in ("system", *right):
        table.add_column(name, justify="left" if name == "system" else "right", no_wrap=True)
    table.add_column("phases, p50 in ms")
    for each in sorted(summaries, key=lambda summary: summary.batch_messages):
        latencies = (each.p50_ms, each.p95_ms, each.p99_ms, each.whole_p50_ms)
        phases = " ".join(f"{name} {ms:.0f}" for name, ms in each.phases_ms.items() if ms >= 1)
        spread = _thousands(each.messages_per_second)
        shown = [f"{ms / 1000:.2f} s" for ms in latencies]
        table.add_row(each.system, f"{each.batch_messages:,}", spread, str(each.batches), *shown, phases)
    table.caption = "min … median … max over rounds; latencies from planned to committed; whole: with asking the source"
    return table


def _ratios(ratios: Sequence[Ratio]) -> Table:
    table = Table(title="How many times quicker, round by round", title_justify="left")
    for name in ("system", "peer", "messages", "throughput", "latency (p50)"):
        table.add_column(name, justify="left" if name in ("system", "peer") else "right", no_wrap=True)
    for each in sorted(ratios, key=lambda ratio: (ratio.batch_messages, ratio.system)):
        spreads = (_times(each.throughput), _times(each.latency))
        table.add_row(each.system, each.peer, f"{each.batch_messages:,}", *spreads)
    table.caption = "min … median … max over rounds"
    return table


def _thousands(spread: Spread) -> str:
    figures = (spread.min / 1000, spread.median / 1000, spread.max / 1000)
    return " … ".join(f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" for figure in figures)


def _times(spread: Spread) -> str:
    return f"{spread.min:.1f} … {spread.median:.1f} … {spread.max:.1f}"


def _document(results: Results) -> dict[str, Any]:
    return {
        "command": results.command,
        "machine": results.machine,
        "raw_messages_per_second": results.raw,
        "summaries": [asdict(summary) for summary in results.summaries()],
        "ratios": [asdict(ratio) for ratio in results.ratios()],
        "rounds": [_round(each) for each in results.rounds],
        "checked": results.checked,
    }


def _round(each: Round) -> dict[str, Any]:
    return {
        "system": each.system,
        "batch_messages": each.batch_messages,
        "messages_per_second": round(each.messages_per_second, 1),
        "others_share": each.others_share,
        "planned_ms": [batch.planned_ms for batch in each.batches],
        "whole_ms": [batch.whole_ms for batch in each.batches],
    }
