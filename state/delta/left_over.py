"""Describes for the doctor the staged files that are no part of a table: by attempt, and what to do with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from state.delta.tables.staging import STAGED_FOLDER, parse_staged_attempt
from transactional.model.attempt import AttemptId, TransactionAttempt

_IN_TIME = "nothing: the topology deletes them, one delta.deletedFileRetentionDuration after it has noticed them"
NAMES_MAX = 5
"""Largest number of attempts, or files, that a text names."""


@dataclass(frozen=True, slots=True)
class UnusedFiles:
    """Staged files that are no part of a table: a description, and what to do, which is mostly nothing."""

    description: str
    remedy: str


def describe_unused_files(home: Path, live: Collection[str], version: AttemptId | None) -> Iterator[UnusedFiles]:
    """Yield the staged files of a table's folder that are not `live`, in up to three groups.

    `version` is the attempt that the table is at. Raises `OSError`.
    """
    folder = home / STAGED_FOLDER
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    staged = {name: parse_staged_attempt(f"{STAGED_FOLDER}/{name}") for name in names}
    unused = {
        name: attempt
        for name, attempt in staged.items()
        if attempt is not None and f"{STAGED_FOLDER}/{name}" not in live
    }
    dead = [name for name, attempt in unused.items() if version is not None and attempt.attempt_id <= version]
    if dead:
        yield UnusedFiles(
            f"{_describe_size(folder, dead)} of {_describe_attempts(dead, unused)} are no part of the table, and "
            f"no attempt commits them any more: the table is at attempt {version}",
            f"{_IN_TIME}. While it does not run, they may be deleted by hand",
        )
    if waiting := sorted(set(unused).difference(dead)):
        yield UnusedFiles(
            f"{_describe_size(folder, waiting)} of {_describe_attempts(waiting, unused)} are not committed: the "
            "attempt is under way, or its driver has died",
            "nothing: after the next driver's first transaction nobody can commit them, and they go as such files do. "
            "Do not delete them while a topology runs",
        )
    if unnamed := [name for name, attempt in staged.items() if attempt is None]:
        yield UnusedFiles(
            f"{_describe_size(folder, unnamed)} ({', '.join(unnamed[:NAMES_MAX])}) are of no attempt: marks of a "
            "start, or what a compaction was writing; if no topology runs, their driver has died",
            _IN_TIME,
        )


def _describe_size(folder: Path, names: Sequence[str]) -> str:
    size = sum((folder / name).stat().st_size for name in names if (folder / name).exists())
    return f"{len(names)} file{'s' if len(names) > 1 else ''} with {size:,} bytes in {STAGED_FOLDER}"


def _describe_attempts(names: Sequence[str], attempts: Mapping[str, TransactionAttempt]) -> str:
    ordered = sorted({attempts[name] for name in names}, key=lambda attempt: attempt.attempt_id)
    listed = ", ".join(map(str, ordered[:NAMES_MAX]))
    more = f" and {len(ordered) - NAMES_MAX} more" if len(ordered) > NAMES_MAX else ""
    return f"attempt{'s' if len(ordered) > 1 else ''} {listed}{more}"
