"""The event journal: every event and the actions that followed, one JSON line each.

A journal contains everything that coordinators did, and why. `replay.py` feeds it to new coordinators, which must
return the same actions, and `doctor --repair` reads it if the store is lost. Event classes, their fields and the JSON
keys are stored words: renaming one makes journals unreadable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar, get_type_hints

from transactional.core.machine import protocol
from transactional.core.machine.protocol import Action, Event
from transactional.core.store.progress import Phase, Progress
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchLimit, BatchMetadata, Digest, PartitionId, PendingMessage, parse_whole_number
from transactional.model.config import INTERNAL, TopologyConfig, redacted_options
from transactional.model.errors import ConfigError, CorruptRecord
from transactional.model.guarantees import Guarantee
from transactional.model.letters import Exclusion
from transactional.model.plumbing.syncing import sync

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first line of a run: everything that its coordinator is created from."""

    progress: Progress
    config: TopologyConfig
    replays_exactly: bool
    sets_aside: bool = False
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    has_windows: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values of the line."""
        progress = {
            "committed_txid": self.progress.committed_txid,
            "committed_batch": self.progress.committed_batch.to_json(),
            "recorded": [[txid, batch.to_json()] for txid, batch in sorted(self.progress.recorded.items())],
            "attempt_id": self.progress.attempt_id,
        }
        return {
            "snapshot": progress,
            "config": {**redacted_options(self.config), **{name: getattr(self.config, name) for name in INTERNAL}},
            "replays_exactly": self.replays_exactly,
            "sets_aside": self.sets_aside,
            "guarantee": self.guarantee.value,
            "has_windows": self.has_windows,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RunStarted:
        """Make the line from the JSON values of `to_json`."""
        stored = row["snapshot"]
        progress = Progress(
            TxId(parse_whole_number(stored["committed_txid"])),
            BatchMetadata.from_json(stored["committed_batch"]),
            {TxId(parse_whole_number(txid)): BatchMetadata.from_json(batch) for txid, batch in stored["recorded"]},
            AttemptId(parse_whole_number(stored["attempt_id"])),
        )
        guarantee = Guarantee(row.get("guarantee", Guarantee.EXACTLY_ONCE.value))
        flags = row["replays_exactly"], row["sets_aside"], guarantee, row.get("has_windows", False)
        return cls(progress, TopologyConfig(**row["config"]), *flags)


@dataclass(frozen=True, slots=True)
class RewindLine:
    """The line that a rewind writes before any table has this fence: its target, and the batch that was committed
    there.

    With `goes_back` a table with this fence has gone back; otherwise it is only fenced. `attempt_id` is 0 for the
    beginning.
    """

    fence_id: AttemptId
    txid: TxId
    attempt_id: AttemptId
    batch: BatchMetadata
    goes_back: bool

    def to_json(self) -> dict[str, Any]:
        """Return the JSON values of the line."""
        target = {"to_txid": self.txid, "attempt_id": self.attempt_id, "batch": self.batch.to_json()}
        return {"fence_id": self.fence_id, **target, "goes_back": self.goes_back}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> RewindLine:
        """Make the line from the JSON values of `to_json`."""
        fence_id, attempt_id = (
            AttemptId(parse_whole_number(row["fence_id"])),
            AttemptId(parse_whole_number(row["attempt_id"])),
        )
        batch, goes_back = BatchMetadata.from_json(row["batch"]), _reader_of(bool)(row["goes_back"])
        return cls(fence_id, TxId(parse_whole_number(row["to_txid"])), attempt_id, batch, goes_back)


JournalLine = tuple[int, RunStarted | RewindLine | Event, list[Action]]


def _open_private(path: str, flags: int) -> int:
    """Open a file which, if it is new, only this user may read: errors and offsets are in it."""
    return os.open(path, flags, 0o600)


class JournalWriter:
    """An observer of the driver that appends to a file, a line per event, flushed immediately.

    With `durability="disk"` it is synced before a transaction may be committed: `doctor --repair` reads it if the store
    is lost.

    Of the ticks without effect only the last one before a line is written: it records the time. Raises `ConfigError` if
    the file can't be written.
    """

    def __init__(self, path: Path | str) -> None:
        self.storage_path = str(path)
        try:
            self._file: TextIO = open(path, "a", encoding="utf-8", opener=_open_private)  # noqa: SIM115 - see close
            if _is_torn(Path(path)):
                self._file.write("\n")
        except OSError as error:
            raise ConfigError(f"the journal {path} can't be written: {error.strerror}") from error
        self._last_tick: tuple[int, Event] | None = None
        self._is_durable = False

    def begin(
        self,
        at_ms: int,
        progress: Progress,
        config: TopologyConfig,
        *,
        replays_exactly: bool,
        sets_aside: bool = False,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        has_windows: bool = False,
    ) -> None:
        """Write the first line of a run."""
        self._last_tick = None
        run = RunStarted(progress, config, replays_exactly, sets_aside, guarantee, has_windows)
        self._write({"at_ms": at_ms, "run": run.to_json()})
        self._is_durable = config.durability == "disk"
        if self._is_durable:
            sync([Path(self.storage_path), Path(self.storage_path).absolute().parent])

    def __call__(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        """Write an event and the actions that followed."""
        if isinstance(event, protocol.Tick) and not actions:
            self._last_tick = (at_ms, event)
            return
        if self._last_tick is not None:
            self._write_event(*self._last_tick, ())
            self._last_tick = None
        self._write_event(at_ms, event, actions)
        # The commit phase is running and ends with another event, so the journal is durable by then.
        if self._is_durable and any(isinstance(action, protocol.StartCommit) for action in actions):
            sync([Path(self.storage_path)])

    def write_rewind(self, at_ms: int, rewind: RewindLine) -> None:
        """Write the line of a rewind before the rewind changes anything. It is durable when this returns."""
        self._last_tick = None
        self._write({"at_ms": at_ms, "rewind": rewind.to_json()})
        sync([Path(self.storage_path), Path(self.storage_path).absolute().parent])

    def close(self) -> None:
        """Close the journal's file. Nothing can be written afterwards."""
        self._file.close()

    def _write_event(self, at_ms: int, event: Event, actions: Sequence[Action]) -> None:
        self._write({"at_ms": at_ms, "event": encode(event), "actions": [encode(action) for action in actions]})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _is_torn(path: Path) -> bool:
    """Whether the last line is incomplete after a power failure."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() not in (b"", b"\n")


def read_journal(path: Path | str) -> Iterator[JournalLine]:
    """The lines of a journal as (wall-clock milliseconds, event, actions). Raises `CorruptRecord`.

    The last line of a run, or of a rewind, may be torn by a power failure. It is skipped.
    """
    for number, row in _rows(path):
        try:
            yield _read_line(row)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise CorruptRecord(f"{path}, line {number} is not a line of a journal: {error!r}") from error
        except (ConfigError, CorruptRecord) as error:
            raise CorruptRecord(f"{path}, line {number} is not a line of a journal: {error}") from error


def _rows(path: Path | str) -> Iterator[tuple[int, Any]]:
    """The lines as JSON, with their numbers, without torn ones. Raises `CorruptRecord`."""
    broken: CorruptRecord | None = None
    line = b""
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                if broken is not None:
                    raise broken from None
                broken = CorruptRecord(f"{path}, line {number} is not a line of a journal: {error!r}")
                continue
            if broken is not None and not (isinstance(row, dict) and ("run" in row or "rewind" in row)):
                raise broken
            broken = None
            yield number, row
    if broken is not None and line.endswith(b"\n"):
        raise broken


def _read_line(row: Mapping[str, Any]) -> JournalLine:
    if "run" in row:
        return row["at_ms"], RunStarted.from_json(row["run"]), []
    if "rewind" in row:
        return row["at_ms"], RewindLine.from_json(row["rewind"]), []
    return row["at_ms"], decode(row["event"]), [decode(action) for action in row["actions"]]


def encode(message: Any) -> dict[str, Any]:
    """Return the JSON values of an event or action: its name and its fields."""
    name = type(message).__name__
    return {"is": name} | {field: _to_json(getattr(message, field)) for field in _WORDS[name][1]}


def decode(row: Mapping[str, Any]) -> Any:
    """The inverse of `encode`. Raises one of Python's errors for anything else."""
    kind, readers = _WORDS[row["is"]]
    return kind(**{name: readers[name](value) for name, value in row.items() if name != "is"})


def _to_json(value: Any) -> Any:
    match value:
        case TransactionAttempt():
            return [value.txid, value.attempt_id]
        case BatchMetadata():
            return value.to_json()
        case BatchLimit():
            return [value.records, value.record_bytes, value.reason]
        case Phase():
            return value.value
        case Mapping():
            digests = sorted(value.items())
            return [[partition.source, partition.index, *astuple(digest)] for partition, digest in digests]
        case (PendingMessage(), *_):
            return [[m.partition.source, m.partition.index, *astuple(m)[1:]] for m in value]
        case tuple():
            return [[exclusion.component, exclusion.fingerprint, exclusion.error] for exclusion in value]
    return value


def _reader_of(kind: type[T]) -> Callable[[Any], T]:
    def read(value: Any) -> T:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not a {kind.__name__}")
        return value

    return read


def _or_none(read: Callable[[Any], T]) -> Callable[[Any], T | None]:
    return lambda value: None if value is None else read(value)


def _attempt(value: Any) -> TransactionAttempt:
    return TransactionAttempt(TxId(parse_whole_number(value[0])), AttemptId(parse_whole_number(value[1])))


def _limit(value: Any) -> BatchLimit:
    records, record_bytes, reason = value
    return BatchLimit(parse_whole_number(records), _or_none(parse_whole_number)(record_bytes), str(reason))


def _digests(value: Any) -> dict[PartitionId, Digest]:
    return {PartitionId(source, index): Digest(*digest) for source, index, *digest in value}


_READERS: Mapping[object, Callable[[Any], Any]] = {
    int: _reader_of(int),
    int | None: _or_none(_reader_of(int)),
    str: _reader_of(str),
    bool: _reader_of(bool),
    TxId: parse_whole_number,
    Phase: Phase,
    TransactionAttempt: _attempt,
    TransactionAttempt | None: _or_none(_attempt),
    BatchMetadata: BatchMetadata.from_json,
    BatchMetadata | None: _or_none(BatchMetadata.from_json),
    BatchLimit | None: _or_none(_limit),
    Mapping[PartitionId, Digest]: _digests,
    tuple[PendingMessage, ...]: lambda value: tuple(
        PendingMessage(PartitionId(source, index), *rest) for source, index, *rest in value
    ),
    tuple[Exclusion, ...]: lambda value: tuple(Exclusion(*exclusion) for exclusion in value),
}
"""The function that reads a field from JSON values, by the field's type."""
_WORDS: Mapping[str, tuple[type[Any], Mapping[str, Callable[[Any], Any]]]] = {
    name: (word, {field.name: _READERS[get_type_hints(word)[field.name]] for field in fields(word) if field.compare})
    for name, word in vars(protocol).items()
    if isinstance(word, type) and is_dataclass(word) and word.__module__ == protocol.__name__
}
"""The class of each event and action with the readers of its fields, by name. Reports are left out, because no decision
depends on them. A field whose type has no reader is an error when this module is imported."""
