"""The log of a table that a sink appends to: its newest version, and Delta commits that add files.

Every Delta commit of the sink has three app transactions of constant ids: the attempt and the transaction of the newest
publication, and the fence id of the leader. A commit is the version right after the one that was read, or it is refused
and the table is read again. A leader whose fence id is no longer in the table publishes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError

from state.delta.log.entries import entries_between
from state.delta.log.log import (
    CHECKPOINT_INTERVAL,
    ENTRY,
    LOG_FOLDER,
    check_links,
    entry_name,
    entry_path,
    table_exists,
)
from state.delta.log.torn import TornFile, find_torn_files, set_aside
from state.delta.tables.storage import can_create_exclusively, create_object
from state.delta.tables.table import (
    DeltaLocation,
    is_writable_protocol,
    list_protocol_features,
    load_table,
    open_storage,
)
from state.delta.write.entry import write_entry
from transactional.core.ports import SinkOwner, SinkPosition
from transactional.core.store.outbox import Publication
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import (
    ConfigError,
    CorruptRecord,
    OperatingError,
    SinkUnavailable,
    StoreMismatch,
    TableUnfit,
)
from transactional.model.names import SINK_ATTEMPT, SINK_FENCE, SINK_PROPERTY, SINK_TXID
from transactional.model.plumbing.syncing import sync, with_folders

_PROPERTIES: Final = {"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)}
_LOADS_MAX: Final = 3
_log = logging.getLogger(__name__)


class VersionTaken(Exception):
    """Another writer has written the Delta version."""


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A Delta version of the table: what stands in its metadata, and the app transactions of sinks."""

    version: int
    metadata: Mapping[str, Any]
    columns: pa.Schema
    attempt_id: int | None
    txid: int | None
    fence_id: int

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The names of the partition columns."""
        return tuple(self.metadata["partitionColumns"])

    @property
    def checkpoint_interval(self) -> int:
        """The number of Delta commits between two checkpoints."""
        text = str(self.metadata["configuration"].get("delta.checkpointInterval", ""))
        return int(text) if text.isdecimal() and int(text) else CHECKPOINT_INTERVAL

    @property
    def publisher(self) -> Mapping[str, str]:
        """The publisher in the table's properties, empty if there is none. Raises `CorruptRecord`."""
        text = self.metadata["configuration"].get(SINK_PROPERTY, "{}")
        try:
            return dict(json.loads(text))
        except (ValueError, TypeError):
            raise CorruptRecord(f"the table property {SINK_PROPERTY} is {text!r}, which is no JSON object") from None

    @property
    def position(self) -> SinkPosition | None:
        """The newest publication, or None if there was none."""
        if self.attempt_id is None or self.txid is None:
            return None
        attempt = TransactionAttempt(TxId(self.txid), AttemptId(self.attempt_id))
        publication = Publication(self.publisher.get("run", ""), attempt)
        return SinkPosition(self.publisher.get("store", ""), publication, AttemptId(self.fence_id))


class AppendLog:
    """Reads the newest version of one table, and writes the next one."""

    def __init__(self, location: DeltaLocation) -> None:
        self.location = location

    def check_location(self) -> None:
        """Raise `ConfigError` for a storage in which two writers can't be kept apart."""
        if not can_create_exclusively(open_storage(self.location)):
            raise ConfigError(
                f"a DeltaSink can't write to {self.location}: two writers could overwrite each other there; use a "
                "disk, S3, Azure or Google Cloud Storage"
            )

    def read_table_id(self) -> str | None:
        """Read the id of the table, which stays when its folder is moved; None if there is no table.

        Raises `TableUnfit`, `OperatingError`.
        """
        if not table_exists(self.location):
            return None
        try:
            return str(load_table(self.location).metadata().id)
        except OperatingError:
            if not self.find_torn_checkpoints():
                raise
        names = [path.name for path in Path(self.location.uri, LOG_FOLDER).iterdir() if ENTRY.fullmatch(path.name)]
        entries = entries_between(self.location, int(min(names)[:20]) - 1, int(max(names)[:20]))
        return next((entry.table_id for entry in reversed(entries) if entry.table_id), None)

    def read(self) -> TableSnapshot | None:
        """Read the newest version; None if there is no table. Raises `TableUnfit`, `OperatingError`."""
        if not table_exists(self.location):
            return None
        table = self._load_intact()
        protocol, metadata = table.protocol(), table.metadata()
        features, schema_json = list_protocol_features(protocol), table.schema().to_json()
        reader, writer = protocol.min_reader_version, protocol.min_writer_version
        has_invariants = '"delta.invariants"' in schema_json
        if not is_writable_protocol(reader, writer, features) or has_invariants:
            feature_list = f" with the features {', '.join(sorted(features))}" if features else ""
            invariants = ", and a column with an invariant" if has_invariants else ""
            raise TableUnfit(
                f"Delta table {self.location} has protocol reader {reader}, writer {writer}{feature_list}{invariants}; "
                "a DeltaSink appends to tables of reader 1, writer 2: without deletion vectors, column mapping, "
                "constraints and generated columns. Use another table, or drop the feature: ALTER TABLE … DROP FEATURE"
            )
        action = {
            "id": str(metadata.id),
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_json,
            "partitionColumns": list(metadata.partition_columns),
            "configuration": dict(metadata.configuration),
            "createdTime": metadata.created_time,
        }
        versions = [table.transaction_version(app_id) for app_id in (SINK_ATTEMPT, SINK_TXID, SINK_FENCE)]
        columns = pa.schema(table.schema().to_arrow())
        return TableSnapshot(table.version(), action, columns, versions[0], versions[1], versions[2] or 0)

    def _load_intact(self) -> DeltaTable:
        """Load the newest version. A checkpoint that a power cut has torn is set aside, if the entries are enough."""
        try:
            return load_table(self.location)
        except OperatingError:
            if not (torn := self.find_torn_checkpoints()):
                raise
            set_aside(torn)
            reasons = "; ".join(f"{file.path.name}: {file.reason}" for file in torn)
            _log.warning("Delta table %s: files of its log were torn, and are set aside: %s", self.location, reasons)
        return load_table(self.location)

    def find_torn_checkpoints(self) -> list[TornFile]:
        """Return the torn files of the log, if its entries are intact and enough without them. Raises `OSError`."""
        torn = find_torn_files(Path(self.location.uri)) if self.location.scheme == "file" else []
        return [] if any(ENTRY.fullmatch(file.path.name) for file in torn) else torn

    def create_table(self, columns: pa.Schema, partition_columns: Sequence[str], properties: Mapping[str, str]) -> None:
        """Create the table, unless there is one. Raises `ConfigError`, `OSError`."""
        with TemporaryDirectory() as scratch:
            try:
                DeltaTable.create(
                    scratch,
                    DeltaSchema.from_arrow(columns),
                    partition_by=list(partition_columns) or None,
                    configuration={**_PROPERTIES, **properties},
                )
            except DeltaError as error:
                raise ConfigError(f"Delta table {self.location} can't be created: {error}") from None
            lines = Path(scratch, LOG_FOLDER, entry_name(0)).read_text("utf-8").splitlines()
        actions = [json.loads(line) for line in lines]
        actions[0]["commitInfo"]["operationParameters"]["location"] = self.location.uri
        if self.location.scheme == "file":
            Path(self.location.uri, LOG_FOLDER).mkdir(parents=True, exist_ok=True)
        try:
            self.write(0, actions)
        except VersionTaken:
            return

    def sync_folders(self) -> None:
        """Sync the folders of the log, on a disk, since a leader that died may have created them. Raises `OSError`."""
        if self.location.scheme == "file":
            log = Path(self.location.uri, LOG_FOLDER)
            sync([log, *log.parents])

    def write(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Write the entry of a Delta version, durably on a disk.

        Raises `VersionTaken`, also if the table was replaced by another one, and `OSError`, after which the entry may
        exist.
        """
        try:
            if self.location.scheme == "file":
                path = Path(self.location.uri, entry_path(version))
                if version and not path.with_name(entry_name(version - 1)).exists():
                    raise VersionTaken(f"{version - 1} is not there")
                write_entry(path, actions, [])
                sync([path.parent])
            else:
                lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
                create_object(open_storage(self.location), entry_path(version), lines.encode())
        except FileExistsError:
            raise VersionTaken(str(version)) from None
        except OSError:
            check_links(self.location)
            raise

    def delete_after(self, snapshot: TableSnapshot, column: str, txid: TxId) -> bool:
        """Delete the rows of later transactions by a Delta commit; False if another writer's came between.

        Files that also have other rows are rewritten. Raises `OperatingError`.
        """
        try:
            table = load_table(self.location)
            if table.version() != snapshot.version:
                return False
            fence = CommitProperties(
                app_transactions=[Transaction(SINK_FENCE, snapshot.fence_id)], max_commit_retries=0
            )
            name = column.replace('"', '""')
            table.delete(f'"{name}" > {int(txid)}', commit_properties=fence)
            if self.location.scheme == "file":
                folder = Path(self.location.uri)
                paths = pa.table(table.get_add_actions())["path"].to_pylist()
                log = [folder / entry_path(table.version())]
                sync(with_folders([*log, *(folder / unquote(path) for path in paths)], folder))
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as error:
            raise unavailable(self.location, f"rows after transaction {txid} can't be deleted", error) from None
        return True

    def load(self) -> DeltaTable:
        """Load the newest version while this process writes further ones: a listing may miss one of two new entries.

        Raises `TableUnfit`, `OperatingError`.
        """
        for _ in range(_LOADS_MAX - 1):
            with suppress(OperatingError):
                return load_table(self.location)
        return load_table(self.location)

    def make_checkpoint(self) -> None:
        """Write a checkpoint, and delete the log's entries that are older than the table's own retention."""
        try:
            table = self.load()
            table.create_checkpoint()
            if self.location.scheme == "file":
                log = Path(self.location.uri, LOG_FOLDER)
                sync([*log.glob(f"{table.version():020}.checkpoint*.parquet"), *log.glob("_last_checkpoint"), log])
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            reason = self.location.describe_error(error)
            _log.warning("Delta table %s has got no checkpoint, and grows slower to read: %s", self.location, reason)


def check_owner(snapshot: TableSnapshot, owner: SinkOwner, location: DeltaLocation) -> None:
    """Raise an error if the table is that of another sink, or of another store. Nobody is fenced before that."""
    if not (publisher := snapshot.publisher):
        return
    if (publisher.get("topology"), publisher.get("sink")) != (owner.topology_id, owner.sink):
        raise ConfigError(
            f"Delta table {location} is that of sink {publisher.get('sink')!r} of topology "
            f"{publisher.get('topology')!r}, and sink {owner.sink!r} of topology {owner.topology_id!r} would append to "
            "it, too: each sink has a table of its own"
        )
    if owner.store_id and publisher.get("store") != owner.store_id:
        raise StoreMismatch(
            f"sink {owner.sink!r} of topology {owner.topology_id!r}: Delta table {location} belongs to the store with "
            f"the id {publisher.get('store')}; the store's id is {owner.store_id}. Nothing was published; restore the "
            "store that belongs to the table, or give the sink another table"
        )


def check_removal(snapshot: TableSnapshot, location: DeltaLocation) -> None:
    """Raise `TableUnfit` if the table forbids that rows are taken out."""
    if str(snapshot.metadata["configuration"].get("delta.appendOnly", "")).lower() == "true":
        raise TableUnfit(
            f"Delta table {location} has the property delta.appendOnly, so that a rewind can't take rows out of it; "
            "nothing was removed. Rewind after ALTER TABLE … UNSET TBLPROPERTIES ('delta.appendOnly')"
        )


def unavailable(location: DeltaLocation, problem: str, error: Exception) -> SinkUnavailable:
    """The error for a storage that did not do what it should."""
    return SinkUnavailable(f"Delta table {location}: {problem}: {location.describe_error(error)}")
