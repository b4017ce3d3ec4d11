"""`FileScratch`: files in the folder of a table with which tasks of an attempt pass data to later steps.

The files lie beside the table's staged files and are named alike, so the maintenance that deletes orphaned staged files
deletes them as well. They are never part of the table.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from state.delta.tables.staging import DRIVER_BYTES_MAX, make_staged_name, staging_error
from transactional.core.ports.staged import StagedBytes
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import OperatingError

SCRATCH_BYTES = 1024 * 1024
"""The size up to which data of a task passes through the driver. A file here is not synced, so it costs less than a
staged one. Spark sends larger results by a detour, and collects them in the driver's JVM."""


@dataclass(frozen=True, slots=True)
class FileScratch:
    """A folder in which tasks store data for later steps, beside the staged files of a table.

    Orphaned files are recognized by their names, as orphaned staged files are.
    """

    folder: Path
    owner: str
    bytes_min: int = SCRATCH_BYTES

    def is_large_enough(self, size_bytes: int, tasks: int) -> bool:
        """Return whether data of this size belongs in a file, by the rule for staged aggregates."""
        return size_bytes > min(self.bytes_min, DRIVER_BYTES_MAX // max(1, tasks))

    def write(self, attempt: TransactionAttempt, parts: Sequence[bytes]) -> list[StagedBytes]:
        """Write parts, one after the other, to a file of a new name. Raises `OperatingError`."""
        name = make_staged_name(self.owner, attempt, "tuples")
        path, stored_parts, start = self.folder / name, list[StagedBytes](), 0
        try:
            path.parent.mkdir(exist_ok=True)
            with path.open("xb") as file:
                for part in parts:
                    file.write(part)
                    stored_parts.append(StagedBytes(name, start, len(part)))
                    start += len(part)
        except OSError as error:
            if not isinstance(error, FileExistsError):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            raise staging_error(self.folder, error, "what a task has for a later step") from error
        return stored_parts

    def read(self, part: StagedBytes) -> bytes:
        """Return the bytes of a part. Raises `OperatingError` if the file no longer has all of them."""
        try:
            with (self.folder / part.path).open("rb") as file:
                file.seek(part.start)
                content = file.read(part.size_bytes)
        except OSError as error:
            raise OperatingError(
                f"what a task has left in {self.folder / part.path} for a later step can't be read on "
                f"{socket.gethostname()}: {error.strerror}; every executor and the driver must see the same folder"
            ) from error
        if len(content) != part.size_bytes:
            raise OperatingError(
                f"{self.folder / part.path} on {socket.gethostname()} has {len(content)} bytes at {part.start} where a "
                f"task has written {part.size_bytes}; the attempt has to be repeated"
            )
        return content

    def remove(self, parts: Sequence[StagedBytes]) -> None:
        """Delete the files of these parts. What can't be deleted is left to the upkeep of the table."""
        for path in {part.path for part in parts}:
            with contextlib.suppress(OSError):
                (self.folder / path).unlink(missing_ok=True)
