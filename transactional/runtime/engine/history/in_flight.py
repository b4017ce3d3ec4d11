"""Drops from recorded batches what only the program that recorded them can use.

A batch in flight may have been recorded by an earlier program. Its exclusions and letters name bolts by ids that may
belong to other bolts now, because the ids of a stream's bolts are numbered in the order of declaration. Its digests
cover the fields that were read, so with other fields the same records have other digests. Dropping them is safe: a bolt
fails again on its tuple, a letter waits as before, and digests are recorded again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from transactional.core.ports.stream_names import split_stream_name
from transactional.core.store import StoreReader
from transactional.core.store.history import RunRecord
from transactional.core.store.progress import Progress
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, PartitionId
from transactional.model.groupings import DEFAULT_STREAM
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology

RUNS_MAX = 100
"""Number of earlier runs that are read."""
_BOLT_FIELDS = ("kind", "inputs", "reads", "steps", "streams")
"""The fields of a bolt's description that identify it."""

_log = logging.getLogger(__name__)


def usable_progress(topology: Topology, store: StoreReader, progress: Progress) -> Progress:
    """Return the progress without exclusions, letters and digests that the current program can't use.

    Exclusions and letters go if the bolts differ from those of the program that recorded them, digests if other fields
    were read. Raises `StoreUnavailable`.
    """
    if not any(batch.excluded or batch.letters or batch.digests for batch in progress.recorded.values()):
        return progress
    current = describe_topology(topology)
    earlier = [run.about.topology for run in recorded_by(store.runs(topology.id, limit=RUNS_MAX), progress)]
    has_same_bolts = all(_bolt_fields(each) == _bolt_fields(current) for each in earlier)
    changed = {stream for each in earlier for stream in _changed_streams(_fields_read(each), _fields_read(current))}
    has_streams = bool(topology.spout.parts.streams.names)

    def has_same_fields(partition: PartitionId) -> bool:
        return split_stream_name(partition)[0] not in changed if has_streams else not changed

    def usable_part(txid: TxId, batch: BatchMetadata) -> BatchMetadata:
        digests = {partition: digest for partition, digest in batch.digests.items() if has_same_fields(partition)}
        if has_same_bolts or not (batch.excluded or batch.letters):
            return replace(batch, digests=digests)
        _log.warning(
            "topology %r has other bolts than when transaction %d was recorded: its dead letters are found again",
            *(topology.id, txid),
        )
        of_spout = tuple(entry for entry in batch.excluded if entry.component == topology.spout_id)
        return replace(batch, digests=digests, excluded=of_spout, letters=())

    return replace(progress, recorded={txid: usable_part(txid, batch) for txid, batch in progress.recorded.items()})


def recorded_by(runs: list[RunRecord], progress: Progress) -> Iterator[RunRecord]:
    """Yield the runs, newest first, that may have recorded the batches in flight: those since the last transaction
    commit, and the one that has made it."""
    for run in runs:
        if run.about.topology:
            yield run
        if run.began_at_txid < progress.committed_txid:
            return


def _bolt_fields(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identifying fields of each bolt by its id, independent of the order of declaration."""
    return {bolt["id"]: [bolt.get(name) for name in _BOLT_FIELDS] for bolt in description["components"][1:]}


def _fields_read(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of the spout's tuples by stream. The only stream of a spout is the default stream."""
    spout = description["components"][0]
    streams: dict[str, str] = spout["streams"]
    return {name: fields for name, fields in streams.items() if name != DEFAULT_STREAM} | {
        name: streams[DEFAULT_STREAM] for name in (DEFAULT_STREAM, spout["id"]) if DEFAULT_STREAM in streams
    }


def _changed_streams(earlier: Mapping[str, str], current: Mapping[str, str]) -> Iterator[str]:
    return (stream for stream, fields in earlier.items() if stream in current and current[stream] != fields)
