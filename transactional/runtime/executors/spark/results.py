"""Sends large results of Spark tasks to the driver by files, if the tasks are threads of the driver's own JVM.

Spark copies results several times on their way, and keeps them in the heap of its JVM: with a million keys a batch that
took a third of the JVM's processor time, and more than half of its memory. A file is written once, read once, and
deleted before it could reach a disk.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.serializers import CPickleSerializer

from transactional.model.attempt import TransactionAttempt

_SPARK_SERIALIZER: Any = CPickleSerializer()  # it has no types
RESULT_BYTES = 1024 * 1024
"""Largest result that is sent by Spark itself, which makes a detour for larger ones."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file with the pickled items of a task."""

    path: Path


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The result files of one executor, in a folder that the driver and all tasks share, or None if there is none.
    Picklable."""

    folder: Path | None
    bytes_min: int = RESULT_BYTES

    def pack(self, attempt: TransactionAttempt, items: Iterable[object]) -> bytes | ResultFile:
        """Pickle the items of a task as Spark would, into a file if they are large. Runs in the task."""
        data: bytes = _SPARK_SERIALIZER.dumps(list(items))
        if self.folder is None or len(data) <= self.bytes_min:
            return data
        path = self.folder / f"{_prefix(attempt)}{uuid.uuid4()}"
        try:
            path.write_bytes(data)
        except OSError:  # the disk is full: the data is sent by Spark instead
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return data
        return ResultFile(path)

    def delete(self, attempt: TransactionAttempt) -> None:
        """Delete the files of an attempt that has failed. Runs on the driver."""
        for path in () if self.folder is None else self.folder.glob(f"{_prefix(attempt)}*"):
            path.unlink(missing_ok=True)


def unpack(results: Iterable[bytes | ResultFile]) -> list[Any]:
    """Return the items of all tasks of a job, in the order of tasks. Raises `OSError` if a file is missing."""
    return [item for packed in results for item in _SPARK_SERIALIZER.loads(_read_data(packed))]


def _prefix(attempt: TransactionAttempt) -> str:
    return f"{int(attempt.txid)}-{int(attempt.attempt_id)}-"


def _read_data(packed: bytes | ResultFile) -> bytes:
    if isinstance(packed, bytes):
        return packed
    content = packed.path.read_bytes()
    packed.path.unlink()  # at once, so that at most one result is in memory and in a file
    return content
