"""What is recorded of batches in flight that holds only for the program which has recorded it.

An exclusion names a bolt, as a letter does that is sent to its bolt again; and the ids of a stream's bolts follow from
all that is declared: another order, and the same id is that of another bolt. A digest is of the fields that were read:
with others the same records have another one. None of it is needed: a bolt fails again on its tuple, a letter waits as
before, and what is read is recorded again.
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
from transactional.topology.describing import described
from transactional.topology.topology import Topology

RUNS_LOOKED_AT = 100
_WIRED = ("kind", "inputs", "reads", "steps", "streams")
"""What makes a bolt another one, of its description."""

_log = logging.getLogger(__name__)


def progress_of_program(topology: Topology, store: StoreReader, progress: Progress) -> Progress:
    """The progress without what was recorded by a program of other bolts, or that has read other fields.

    Raises `StoreUnavailable`.
    """
    if not any(batch.excluded or batch.letters or batch.digests for batch in progress.recorded.values()):
        return progress
    now = described(topology)
    before = [run.about.topology for run in recorded_by(store.runs(topology.id, limit=RUNS_LOOKED_AT), progress)]
    is_wired = all(_wiring(each) == _wiring(now) for each in before)
    others = {stream for each in before for stream in _others(_read(each), _read(now))}
    are_named = bool(topology.spout.streams)

    def is_as_read(partition: PartitionId) -> bool:
        return split_stream_name(partition)[0] not in others if are_named else not others

    def today(txid: TxId, batch: BatchMetadata) -> BatchMetadata:
        digests = {partition: digest for partition, digest in batch.digests.items() if is_as_read(partition)}
        if is_wired or not (batch.excluded or batch.letters):
            return replace(batch, digests=digests)
        _log.warning(
            "topology %r has other bolts than when transaction %d was recorded: its dead letters are found again",
            *(topology.id, txid),
        )
        of_spout = tuple(each for each in batch.excluded if each.component == topology.spout_id)
        return replace(batch, digests=digests, excluded=of_spout, letters=())

    return replace(progress, recorded={txid: today(txid, batch) for txid, batch in progress.recorded.items()})


def recorded_by(runs: list[RunRecord], progress: Progress) -> Iterator[RunRecord]:
    """The runs, newest first, that may have recorded what is in flight: those since the last transaction commit, and
    the one that has made it."""
    for run in runs:
        if run.about.topology:
            yield run
        if run.began_at_txid < progress.committed_txid:
            return


def _wiring(about: Mapping[str, Any]) -> dict[str, Any]:
    """By id, whatever the order."""
    return {each["id"]: [each.get(name) for name in _WIRED] for each in about["components"][1:]}


def _read(about: Mapping[str, Any]) -> dict[str, str]:
    """The fields of what the spout emits, by stream; several have their own names, one is the default stream."""
    spout = about["components"][0]
    streams: dict[str, str] = spout["streams"]
    return {name: fields for name, fields in streams.items() if name != DEFAULT_STREAM} | {
        name: streams[DEFAULT_STREAM] for name in (DEFAULT_STREAM, spout["id"]) if DEFAULT_STREAM in streams
    }


def _others(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    return (stream for stream, fields in before.items() if stream in now and now[stream] != fields)
