"""Files that tasks write so that large data need not pass through the driver.

A `Stager` writes partial aggregates into the folder of a state's table; the file is no part of the table until the
driver commits it. A `Scratch` stores tuples and partial aggregates there that a later step of the same attempt reads,
and that are never committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from transactional.model.attempt import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task has written, with one row per key. Other tasks may have rows of the same keys.

    `path` is relative to the table's folder. `stats` are the statistics for the table's log, as JSON: exact, or left
    out. `largest` has, for each value column whose sums can overflow, the largest absolute value, in units of its last
    digit. If `is_synced`, a power failure does not lose the file. `host` is the machine of the task, or empty.
    """

    path: str
    size_bytes: int
    rows: int
    stats: str
    largest: Mapping[str, int]
    is_synced: bool
    host: str = ""


@dataclass(frozen=True, slots=True)
class StagedBytes:
    """A part of a file that a task has written for a later step of the same attempt.

    `path` is relative to the folder of the table beside whose files it lies.
    """

    path: str
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Partial aggregates that a task has split by key for a later step, as Arrow IPC.

    `parts` has one entry for each task of that step. `rows` is the number of rows in all parts.
    """

    parts: tuple[StagedBytes, ...]
    rows: int


class Scratch(Protocol):
    """Stores data between steps of an attempt that is too large for the driver. Picklable; runs on executors.

    Its files are part of no table, and need not outlive a power failure: only their attempt reads them.
    """

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """Return whether a task should store its `size_bytes` here, if `tasks` tasks have data."""

    def write(self, attempt: TransactionAttempt, parts: Sequence[bytes]) -> list[StagedBytes]:
        """Write parts to one file of a new name. Raises `OperatingError`, and leaves no part of it."""

    def read(self, part: StagedBytes) -> bytes:
        """Return the bytes of a part. Raises `OperatingError` if they are missing, or not as they were written."""

    def remove(self, parts: Sequence[StagedBytes]) -> None:
        """Delete the files of these parts. Files that can't be deleted are left to the maintenance of the table."""


class Stager(Protocol):
    """Writes partial aggregates where a state's table lies. Picklable; runs on executors."""

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """Return whether a task should write partial aggregates of this size itself, if `tasks` tasks have some."""

    def stage(self, attempt: TransactionAttempt, rows: pa.Table) -> StagedFile:
        """Write rows, one per key, to a file of a new name. Raises `OperatingError`, and leaves no part of it."""

    def write_mark(self, *, create: bool = False) -> str:
        """Write an empty file of a new name, and return the name; `create` creates the folder first.

        With such files an executor checks that all machines see the same folder.

        Raises `OperatingError`.
        """

    def missing_marks(self, marks: Sequence[str]) -> list[str]:
        """Return those marks that this machine does not see."""

    def remove_marks(self, marks: Sequence[str]) -> None:
        """Delete the files of these marks."""
