"""A Delta table's history, read from the files of its log alone: checkpoints and Delta commits.

`read_log` begins with the oldest checkpoint from which every later commit exists, and parses all commits after it. It
uses no library for Delta, whose mistakes it could share with the writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verifier.evidence.storage import Storage

LOG = "_delta_log"
DIGEST_TAG = "transactional.blake2b"
READ_TRIES = 3
"""How often reading begins again when log files are deleted meanwhile."""

_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")


class LogBroken(Exception):
    """A table's log is missing, has a gap, or can't be read."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file that a Delta commit added. `stats` is the JSON of its writer's statistics, None if there is none."""

    path: str
    stats: str | None
    data_change: bool
    partition: Mapping[str, str | None]
    size_bytes: int | None = None
    digest: str | None = None
    """The BLAKE2b digest of its bytes that its writer has recorded, None if there is none."""

    def statistics(self) -> Mapping[str, Any]:
        """Return the writer's statistics, empty if there are none."""
        return json.loads(self.stats) if self.stats else {}


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """One Delta commit: its app transactions, and the files that it added and removed."""

    version: int
    operation: str
    app_versions: Mapping[str, int]
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]
    changes_data: bool
    partition_columns: tuple[str, ...] = ()
    """The columns by which the table is partitioned after this commit."""
    partition_columns_before: tuple[str, ...] = ()
    restored: int | None = None
    """The earlier Delta version whose files the commit restores, by its own account."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The properties of the table after this commit."""


@dataclass(slots=True)
class TableShape:
    """The declaration of a table: the newest metadata and protocol of its log."""

    properties: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    partition_columns: tuple[str, ...] = ()
    reader_version: int = 1
    writer_version: int = 2
    features: frozenset[str] = frozenset()

    def take(self, action: Mapping[str, Any]) -> None:
        """Apply a `metaData` or `protocol` action."""
        if metadata := action.get("metaData"):
            self.properties = dict(metadata.get("configuration") or {})
            self.columns = tuple(column["name"] for column in json.loads(metadata["schemaString"])["fields"])
            self.partition_columns = tuple(metadata.get("partitionColumns") or ())
        if protocol := action.get("protocol"):
            self.reader_version, self.writer_version = protocol["minReaderVersion"], protocol["minWriterVersion"]
            self.features = frozenset(
                [*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())]
            )


@dataclass(frozen=True, slots=True)
class TableLog:
    """A table's history: the state in a checkpoint before the first Delta commit that is read, and everything since.

    `base_version` is the checkpoint's, -1 if the history is complete.
    """

    base_version: int
    base_app_versions: Mapping[str, int]
    base_files: Mapping[str, DataFile]
    commits: tuple[DeltaCommit, ...]
    shape: TableShape

    @property
    def version(self) -> int:
        """The newest Delta version."""
        return self.commits[-1].version if self.commits else self.base_version

    def app_version(self, app_id: str) -> int | None:
        """Return the newest version of an app transaction, None if there is none."""
        for commit in reversed(self.commits):
            if app_id in commit.app_versions:
                return commit.app_versions[app_id]
        return self.base_app_versions.get(app_id)

    def files(self) -> dict[str, DataFile]:
        """Return the data files of the newest version, by path."""
        active = dict(self.base_files)
        for commit in self.commits:
            for path in commit.removed:
                active.pop(path, None)
            active.update((file.path, file) for file in commit.added)
        return active


def read_log(storage: Storage) -> TableLog:
    """Read as much of a table's log as exists. Raises `LogBroken`."""
    for tried in range(1, READ_TRIES + 1):
        try:
            return _read(storage)
        except FileNotFoundError as error:
            if tried == READ_TRIES:
                raise LogBroken(f"log files disappear while they are being read: {error}") from error
    raise AssertionError("not reached")


def _read(storage: Storage) -> TableLog:
    names = storage.names(LOG)
    versions = sorted(int(match[1]) for match in map(_COMMIT.fullmatch, names) if match)
    base, parts = _oldest_base(versions, _find_checkpoints(names))
    shape = TableShape()
    app_versions, files = _read_checkpoint(storage, parts, shape)
    commits = [_read_commit(storage, version, shape) for version in versions if version > base]
    return TableLog(base, app_versions, files, tuple(commits), shape)


def _find_checkpoints(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the names of each complete checkpoint's files, by version."""
    files_of: dict[int, list[str]] = {}
    parts: dict[int, int] = {}
    for name in sorted(names):
        if match := _CHECKPOINT.fullmatch(name):
            version = int(match[1])
            files_of.setdefault(version, []).append(name)
            parts[version] = int(match[2] or 1)
    return {version: files for version, files in files_of.items() if len(files) == parts[version]}


def _oldest_base(versions: list[int], checkpoints: Mapping[int, list[str]]) -> tuple[int, list[str]]:
    """Return the oldest version after which every Delta commit exists, with the files of its checkpoint."""
    newest = max([*versions[-1:], *checkpoints], default=None)
    if newest is None:
        raise LogBroken("there is no Delta log")
    first = _first_contiguous(versions) if versions and versions[-1] == newest else newest + 1
    if first == 0:
        return -1, []
    usable = [version for version in checkpoints if version >= first - 1]
    if not usable:
        last = max([version for version in versions if version < first], default=None)
        raise LogBroken(
            f"the log has a gap: Delta version {first - 1} is missing"
            + (f" (the last one before it is {last})" if last is not None else "")
        )
    return min(usable), checkpoints[min(usable)]


def _first_contiguous(versions: list[int]) -> int:
    first = versions[-1]
    for version in reversed(versions[:-1]):
        if version != first - 1:
            break
        first = version
    return first


def _read_checkpoint(
    storage: Storage, names: Iterable[str], shape: TableShape
) -> tuple[dict[str, int], dict[str, DataFile]]:
    app_versions: dict[str, int] = {}
    files: dict[str, DataFile] = {}
    for name in names:
        try:
            table = storage.read_parquet(f"{LOG}/{name}")
            for action in ("protocol", "metaData"):
                for row in _rows(table, action):
                    shape.take({action: row})
            app_versions |= {row["appId"]: row["version"] for row in _rows(table, "txn")}
            added = (_parse_file({**row, "dataChange": False}) for row in _rows(table, "add"))
            files |= {file.path: file for file in added}
        except FileNotFoundError:
            raise
        except (*_UNREADABLE, OSError) as error:
            raise LogBroken(f"the checkpoint {name} is not readable: {error!r}") from error
    return app_versions, files


def _rows(table: Any, action: str) -> list[dict[str, Any]]:
    """Return the rows of one kind of action in a checkpoint, with maps as dicts."""
    if action not in table.column_names:
        return []
    column = table.column(action)
    rows: list[dict[str, Any]] = column.filter(column.is_valid()).to_pylist()
    for row in rows:
        for name in ("configuration", "partitionValues"):
            if isinstance(row.get(name), list):
                row[name] = dict(row[name])
    return rows


def _read_commit(storage: Storage, version: int, shape: TableShape) -> DeltaCommit:
    text = storage.read(f"{LOG}/{version:020}.json")
    if not text:
        raise LogBroken(f"the entry of Delta version {version} has no byte")
    try:
        lines = b",".join(text.split(b"\n")) if b"\n" in text else text
        return _parse_commit(version, json.loads(b"[" + lines.strip(b",") + b"]"), shape)
    except _UNREADABLE:
        pass
    try:  # blank lines
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
        return _parse_commit(version, actions, shape)
    except _UNREADABLE as error:
        raise LogBroken(f"Delta version {version} is not readable: {error!r}") from error


def _parse_file(add: Mapping[str, Any]) -> DataFile:
    digest = dict(add.get("tags") or {}).get(DIGEST_TAG)
    partition = add.get("partitionValues") or {}
    return DataFile(add["path"], add.get("stats"), add["dataChange"], partition, add.get("size"), digest)


def _parse_commit(version: int, actions: Iterable[Mapping[str, Any]], shape: TableShape) -> DeltaCommit:
    app_versions: dict[str, int] = {}
    added: list[DataFile] = []
    removed: list[str] = []
    operation, changes_data, restored = "", False, None
    partition_columns_before = shape.partition_columns
    for action in actions:
        if add := action.get("add"):
            added.append(_parse_file(add))
            changes_data = changes_data or add["dataChange"]
        elif remove := action.get("remove"):
            removed.append(remove["path"])
            changes_data = changes_data or remove["dataChange"]
        elif txn := action.get("txn"):
            if not isinstance(txn["version"], int):
                raise TypeError(f"the version of an app transaction is {txn['version']!r}")
            app_versions[txn["appId"]] = txn["version"]
        elif commit_info := action.get("commitInfo"):
            operation = commit_info.get("operation", "")
            if operation == "RESTORE":
                restored = int((commit_info.get("operationParameters") or {}).get("version", -1))
        else:
            shape.take(action)
    partitions = (shape.partition_columns, partition_columns_before)
    files = (tuple(added), tuple(removed), changes_data)
    return DeltaCommit(version, operation, app_versions, *files, *partitions, restored, shape.properties)
