"""The entries of the log that a sink writes: files that are added or replaced, and the app transactions of a sink."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from sinks.delta.append_log import TableSnapshot
from sinks.delta.compaction import Merge
from transactional.core.ports import SinkOwner
from transactional.core.store.outbox import Publication
from transactional.model.names import SINK_ATTEMPT, SINK_FENCE, SINK_PROPERTY, SINK_TXID


def entry(
    snapshot: TableSnapshot,
    owner: SinkOwner,
    publication: Publication | None,
    *,
    files: Iterable[Mapping[str, Any]] = (),
    metadata: Mapping[str, Any] | None = None,
    operation: str = "WRITE",
) -> list[dict[str, Any]]:
    """Return the entry of the log that adds files and moves the position to a publication; None leaves it."""
    note: dict[str, Any] = {"topology": owner.topology_id, "sink": owner.sink, "fence": int(owner.fence_id)}
    versions = {SINK_ATTEMPT: snapshot.attempt_id, SINK_TXID: snapshot.txid, SINK_FENCE: int(owner.fence_id)}
    if publication is not None:
        attempt = publication.attempt
        note |= {"txid": int(attempt.txid), "attempt_id": int(attempt.attempt_id), "run": publication.run}
        versions |= {SINK_ATTEMPT: int(attempt.attempt_id), SINK_TXID: int(attempt.txid)}
    added = [
        {
            "path": file["path"],
            "partitionValues": json.loads(file["partition"]),
            "size": file["size_bytes"],
            "modificationTime": file["modified_ms"],
            "dataChange": True,
            "stats": file["statistics"],
        }
        for file in files
    ]
    return [
        _information(snapshot, note, operation, is_blind=metadata is None),
        *([{"metaData": dict(metadata)}] if metadata is not None else []),
        *({"add": action} for action in added),
        *(
            {"txn": {"appId": app_id, "version": version}}
            for app_id, version in versions.items()
            if version is not None
        ),
    ]


def replacement_entry(
    snapshot: TableSnapshot, owner: SinkOwner, merge: Merge, *, removes_rows: bool = False
) -> list[dict[str, Any]]:
    """Return the entry of the log that replaces files by others, under the fence of the leader.

    The new files have the same rows, unless `removes_rows` is true.
    """
    now_ms = time.time_ns() // 1_000_000
    note = {"topology": owner.topology_id, "sink": owner.sink, "fence": int(owner.fence_id)}
    removed = {"dataChange": removes_rows, "deletionTimestamp": now_ms, "extendedFileMetadata": True}
    return [
        _information(snapshot, note, "DELETE" if removes_rows else "OPTIMIZE", is_blind=False),
        *(
            {"remove": {"path": file.path, "partitionValues": file.partition, "size": file.size_bytes, **removed}}
            for file in merge.old
        ),
        *(
            {
                "add": {
                    "path": file.path,
                    "partitionValues": file.partition,
                    "size": file.size_bytes,
                    "modificationTime": file.modified_ms,
                    "dataChange": removes_rows,
                    "stats": file.statistics,
                }
            }
            for file in merge.new
        ),
        {"txn": {"appId": SINK_FENCE, "version": int(owner.fence_id)}},
    ]


def _information(snapshot: TableSnapshot, note: Mapping[str, Any], operation: str, *, is_blind: bool) -> dict[str, Any]:
    """Return the action that describes an entry in the history of the table."""
    information = {
        "timestamp": time.time_ns() // 1_000_000,
        "operation": operation,
        "operationParameters": {"mode": "Append"} if operation == "WRITE" else {},
        "readVersion": snapshot.version,
        "isBlindAppend": is_blind,
        "engineInfo": "transactional",
        "userMetadata": json.dumps(note),
    }
    return {"commitInfo": information}


def with_publisher(metadata: Mapping[str, Any], owner: SinkOwner, run: str) -> dict[str, Any]:
    """Return the metadata of a table with its publisher, and the run of its newest publication."""
    publisher = {"topology": owner.topology_id, "sink": owner.sink, "store": owner.store_id, "run": run}
    return {**metadata, "configuration": {**metadata["configuration"], SINK_PROPERTY: json.dumps(publisher)}}


def with_columns(metadata: Mapping[str, Any], columns: Iterable[pa.Field]) -> dict[str, Any]:
    """Return the metadata of a table with further columns, which are nullable."""
    schema = json.loads(metadata["schemaString"])
    added = json.loads(DeltaSchema.from_arrow(pa.schema(list(columns))).to_json())
    return {**metadata, "schemaString": json.dumps({**schema, "fields": [*schema["fields"], *added["fields"]]})}
