"""What Spark tasks send to the driver: where they are threads of the driver's own JVM, what is large goes by a file.

Spark copies results several times on their way, and keeps them in the heap of its JVM: with a million keys a batch that
took a third of the JVM's processor time, and more than half of its memory. A file is written once, read once, and gone
before it could reach a disk.
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

_SPARKS: Any = CPickleSerializer()  # it has no types
RESULT_BYTES = 1024 * 1024
"""What is larger Spark itself sends by a detour."""


@dataclass(frozen=True, slots=True)
class InFile:
    """Where a task has left what it sends."""

    path: Path


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The files of one executor, in a folder that the driver and all tasks have; None: there is none. Picklable."""

    folder: Path | None
    bytes_min: int = RESULT_BYTES

    def pack(self, attempt: TransactionAttempt, items: Iterable[object]) -> bytes | InFile:
        """In a task: all that it sends, pickled as Spark would have done."""
        data: bytes = _SPARKS.dumps(list(items))
        if self.folder is None or len(data) <= self.bytes_min:
            return data
        path = self.folder / f"{_prefix(attempt)}{uuid.uuid4()}"
        try:
            path.write_bytes(data)
        except OSError:  # the disk is full: what would have been sent is still here
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return data
        return InFile(path)

    def forget(self, attempt: TransactionAttempt) -> None:
        """In the driver: nobody reads any more what tasks of an attempt have left."""
        for path in () if self.folder is None else self.folder.glob(f"{_prefix(attempt)}*"):
            path.unlink(missing_ok=True)


def unpacked(sent: Iterable[bytes | InFile]) -> list[Any]:
    """What all tasks of a job have sent, in their order. Raises `OSError` for a file that somebody has deleted."""
    return [item for each in sent for item in _SPARKS.loads(_bytes(each))]


def _prefix(attempt: TransactionAttempt) -> str:
    return f"{int(attempt.txid)}-{int(attempt.attempt_id)}-"


def _bytes(each: bytes | InFile) -> bytes:
    if isinstance(each, bytes):
        return each
    data = each.path.read_bytes()
    each.path.unlink()  # so that no more than one of them is there twice
    return data
