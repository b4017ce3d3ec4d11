"""`PayloadFolder`: the files of the outbox, one for each large payload.

A file is written and synced, with its folder, before the transaction commit that names it in an outbox row. It is never
changed. It is deleted after its row. So a crash leaves files that no row names, and never a row without its file. Those
files are swept when a leader begins, and when one has settled a sink again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from transactional.core.store import CoordinatorStore, Lease
from transactional.core.store.history import RunRecord
from transactional.core.store.outbox import (
    ROW_BYTES_MAX,
    ROW_BYTES_WITHOUT_FOLDER,
    OutboxRow,
    PayloadFile,
    SinkRecords,
)
from transactional.core.store.sink_rules import run_of
from transactional.model.attempt import TransactionAttempt
from transactional.model.config import TopologyConfig
from transactional.model.errors import OperatingError, RecordRefused
from transactional.model.plumbing.syncing import sync, with_folders
from transactional.runtime.publishing.payloads import CHECKSUM_BYTES, corrupt_payload

_NAME: Final = re.compile(r".*-(?P<txid>\d+)-(?P<attempt>\d+)-(?P<run>[0-9a-f]{16})\.records")
_READABLE_MAX: Final = 60
"""The maximum length of a sink's name in the name of a file."""
_RUNS_MAX: Final = 100_000


class PayloadFolder:
    """The folder of large payloads of one topology. `path` is None if no folder is known: rows then hold all payloads.

    `begin` comes first, once the process leads. `store_large` is called by the thread of commit phases, `read` and
    `delete` by those of relays.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lease: Lease | None = None
        self._newest: dict[str, tuple[TransactionAttempt, str]] = {}

    @property
    def storage_path(self) -> str | None:
        """The path of the folder."""
        return None if self.path is None else str(self.path)

    def begin(self, store: CoordinatorStore, lease: Lease) -> None:
        """Check that every file is there that a row names, and delete those that none names.

        Raises `CorruptRecord` for a file that is missing or of another size.
        """
        self._lease = lease
        for row in store.outbox_in_files(lease.topology_id):
            self._check_size(row)
        self.sweep(store)

    def store_large(self, attempt: TransactionAttempt, outbox: Mapping[str, SinkRecords]) -> dict[str, SinkRecords]:
        """Write large payloads to files, and return the records with the files in their place.

        Raises `OperatingError` if that fails, and `RecordRefused` for a large payload if no folder is known.
        """
        return {sink: self._store(sink, attempt, records) for sink, records in outbox.items()}

    def read(self, row: OutboxRow) -> OutboxRow:
        """Return a row with its whole payload. Raises `CorruptRecord` if its file is missing or was changed."""
        if row.file is None:
            return row
        file = self._check_size(row)
        try:
            payload = file.read_bytes()
        except OSError as error:
            raise OperatingError(f"the file {file} of the outbox can't be read: {error}") from error
        if payload[:CHECKSUM_BYTES] != row.payload:
            raise corrupt_payload(row, f"its file {file} was changed")
        return replace(row, payload=payload, file=None)

    def delete(self, rows: Iterable[OutboxRow]) -> None:
        """Delete the files of rows that are deleted. One that can't be deleted is swept later."""
        for row in rows:
            if row.file is not None and self.path is not None:
                with suppress(OSError):
                    (self.path / row.file.name).unlink()

    def sweep(self, store: CoordinatorStore) -> None:
        """Delete files of this topology that no row names, and that no transaction commit can name any more.

        The order is important: names are listed before the store is read. A file of a transaction that is committed by
        then has a row, or is needed by nobody. Files of runs that the store does not know belong to a copy of it.
        """
        lease = self._lease
        if lease is None or self.path is None or not self.path.is_dir():
            return
        names = [match for path in self.path.iterdir() if (match := _NAME.fullmatch(path.name)) is not None]
        if not names:
            return
        position = store.position(lease.topology_id)
        named_files = {row.file.name for row in store.outbox_in_files(lease.topology_id) if row.file is not None}
        runs = {_run_digest(lease.topology_id, run) for run in store.runs(lease.topology_id, limit=_RUNS_MAX)}
        for match in names:
            is_earlier = int(match["attempt"]) <= lease.fence_id
            is_committed = position is not None and int(match["txid"]) <= position.committed_txid
            if match["run"] in runs and match[0] not in named_files and (is_earlier or is_committed):
                with suppress(OSError):
                    (self.path / match[0]).unlink()

    def _store(self, sink: str, attempt: TransactionAttempt, records: SinkRecords) -> SinkRecords:
        if records.size_bytes <= (ROW_BYTES_WITHOUT_FOLDER if self.path is None else ROW_BYTES_MAX):
            return records
        if self.path is None:
            raise RecordRefused(
                f"sink {sink!r}: the {records.count} records of transaction {attempt.txid} take {records.size_bytes} "
                f"bytes compressed, more than the {ROW_BYTES_WITHOUT_FOLDER} that an outbox row holds: set "
                "outbox_folder to a folder that every process of the topology sees, and start it again; nothing of the "
                "transaction was committed"
            )
        assert self._lease is not None, "it has begun"
        previous, previous_name = self._newest.get(sink, (None, ""))
        if previous is not None and previous.txid == attempt.txid:
            with suppress(OSError):
                (self.path / previous_name).unlink()
        name = f"{_short(sink)}-{attempt.txid}-{attempt.attempt_id}-{_run_digest(self._lease.topology_id, self._lease)}"
        file = PayloadFile(f"{name}.records", records.size_bytes)
        self._newest[sink] = (attempt, file.name)
        self._write(self.path / file.name, records.payload)
        return replace(records, payload=records.payload[:CHECKSUM_BYTES], file=file)

    @staticmethod
    def _write(file: Path, payload: bytes) -> None:
        folder = file.parent
        try:
            is_new = not folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(payload)
            sync([file])
            sync(with_folders([folder], folder.parent) if is_new else [folder])
        except OSError as error:
            with suppress(OSError):
                file.unlink()
            raise OperatingError(
                f"the outbox can't write a file of {len(payload)} bytes to {folder}: {error.strerror or error}. Make "
                "room there, or let this user write to it; the transaction is committed once that succeeds"
            ) from error

    def _check_size(self, row: OutboxRow) -> Path:
        assert row.file is not None
        if self.path is None:
            raise corrupt_payload(row, f"it is in the file {row.file.name}, and no folder is known: set outbox_folder")
        file = self.path / row.file.name
        try:
            size_bytes = file.stat().st_size
        except FileNotFoundError as error:
            raise corrupt_payload(row, f"its file {file} is missing") from error
        except OSError as error:
            raise OperatingError(f"the file {file} of the outbox can't be read: {error}") from error
        if size_bytes != row.file.size_bytes:
            raise corrupt_payload(row, f"its file {file} has {size_bytes} bytes instead of {row.file.size_bytes}")
        return file


def outbox_folder(config: TopologyConfig, store: CoordinatorStore) -> Path | None:
    """Return the folder for large payloads: the option's, or the one beside a SQLite file; None if there is neither."""
    if config.outbox_folder is not None:
        return Path(config.outbox_folder).absolute()
    return None if store.storage_path is None else Path(store.storage_path).absolute().parent / "outbox"


def _run_digest(topology_id: str, run: Lease | RunRecord) -> str:
    return hashlib.sha256(f"{topology_id}\0{run_of(run)}".encode()).hexdigest()[:16]


def _short(sink: str) -> str:
    """The name of a sink as a part of the name of a file."""
    name = quote(sink, safe="")
    return (
        name
        if len(name) <= _READABLE_MAX
        else f"{name[:_READABLE_MAX]}-{hashlib.sha256(sink.encode()).hexdigest()[:8]}"
    )
