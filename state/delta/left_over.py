"""What the doctor finds in the folder of a table's staged files: those that are no part of the table, by attempt."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from state.delta.tables.staging import STAGED_FOLDER, attempt_of
from transactional.model.attempt import AttemptId, TransactionAttempt

_IN_TIME = "nothing: the topology deletes them, one delta.deletedFileRetentionDuration after it has noticed them"
_NAMED = 5
"""So many attempts are named."""


@dataclass(frozen=True, slots=True)
class LeftOver:
    """What is there, and what is to be done: nothing, most of the time."""

    what: str
    remedy: str


def left_over(home: Path, live: Collection[str], version: AttemptId | None) -> Iterator[LeftOver]:
    """What lies beside the live files of a table, which was written last by the attempt `version`. Raises `OSError`."""
    folder = home / STAGED_FOLDER
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    staged = {name: attempt_of(f"{STAGED_FOLDER}/{name}") for name in names}
    beside = {
        name: attempt
        for name, attempt in staged.items()
        if attempt is not None and f"{STAGED_FOLDER}/{name}" not in live
    }
    dead = [name for name, attempt in beside.items() if version is not None and attempt.attempt_id <= version]
    if dead:
        yield LeftOver(
            f"{_counted(folder, dead)} of {_attempts([beside[name] for name in dead])} are no part of the table, and "
            f"no attempt commits them any more: the table is at attempt {version}",
            f"{_IN_TIME}. While it does not run, they may be deleted by hand",
        )
    if waiting := sorted(set(beside).difference(dead)):
        yield LeftOver(
            f"{_counted(folder, waiting)} of {_attempts([beside[name] for name in waiting])} are not committed: the "
            "attempt is under way, or its driver has died",
            "nothing: after the next driver's first transaction nobody can commit them, and they go as such files do. "
            "Do not delete them while a topology runs",
        )
    if others := [name for name, attempt in staged.items() if attempt is None]:
        yield LeftOver(
            f"{_counted(folder, others)} ({', '.join(others[:_NAMED])}) are of no attempt: marks of a start, or what "
            "a compaction was writing; if no topology runs, their driver has died",
            _IN_TIME,
        )


def _counted(folder: Path, names: Sequence[str]) -> str:
    size = sum((folder / name).stat().st_size for name in names if (folder / name).exists())
    return f"{len(names)} file{'s' if len(names) > 1 else ''} with {size:,} bytes in {STAGED_FOLDER}"


def _attempts(attempts: Sequence[TransactionAttempt]) -> str:
    each = sorted(set(attempts), key=lambda attempt: attempt.attempt_id)
    named = ", ".join(map(str, each[:_NAMED]))
    more = f" and {len(each) - _NAMED} more" if len(each) > _NAMED else ""
    return f"attempt{'s' if len(each) > 1 else ''} {named}{more}"
