"""Partial aggregates that do not pass through the driver: a task writes them where the state's table lies, and reports
the file. It is no part of the table until the driver commits it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from transactional.model.attempt import TransactionAttempt

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What a task has written: one row per key, but other tasks may have rows of the same keys.

    `path` is relative to the table's folder. `stats` are the statistics for the table's log, as JSON: exact, or left
    out. `largest` has for each value column whose sums can overflow its largest absolute value, in units of the last
    digit. `is_synced`: a power failure does not lose it. `host` is the machine of the task, where it is known.
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
    """A part of a file that a task has written for a later step of the same attempt. `path` is relative to the folder
    of the table beside whose files it lies."""

    path: str
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Partial aggregates that a task has split by key and left for a later step: a part for each of its tasks, as Arrow
    IPC. `rows` is how many they are together."""

    parts: tuple[StagedBytes, ...]
    rows: int


class Scratch(Protocol):
    """Where tasks of an attempt leave for later ones what is too large for the driver. Picklable; runs on executors.

    Nothing of it is part of a table, nor has it to outlive a power failure: it is of use to its attempt alone.
    """

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """Whether a task should leave so many bytes here, when so many tasks have some."""

    def write(self, attempt: TransactionAttempt, parts: Sequence[bytes]) -> list[StagedBytes]:
        """Write parts to one file of a new name. Raises `OperatingError`, and leaves no part of it."""

    def read(self, part: StagedBytes) -> bytes:
        """What was written. Raises `OperatingError` if it is not there as it was."""

    def remove(self, parts: Sequence[StagedBytes]) -> None:
        """Delete the files of these parts. What can't be deleted is left to the upkeep of the table."""


class Stager(Protocol):
    """Writes partial aggregates where a state's table lies. Picklable; runs on executors."""

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """Whether a task should write partial aggregates of this size itself, when so many tasks have some."""

    def stage(self, attempt: TransactionAttempt, rows: pa.Table) -> StagedFile:
        """Write rows, one per key, to a file of a new name. Raises `OperatingError`, and leaves no part of it."""

    def write_mark(self, *, create: bool = False) -> str:
        """Write an empty file of a new name, for the check that all see the same folder; `create` the folder before.

        Raises `OperatingError`.
        """

    def missing_marks(self, marks: Sequence[str]) -> list[str]:
        """Those of the marks that are not to be seen from here."""

    def remove_marks(self, marks: Sequence[str]) -> None:
        """Delete them."""
