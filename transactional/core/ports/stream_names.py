"""Names of partitions in a topology with several streams: the name of the stream, then the name that its spout gives.

The only spout of a topology has no stream in the names of its partitions. It gets one as soon as another spout joins.
A batch that was recorded under the earlier names is therefore translated into the current ones here. Which spout was
the only one is read from the description of the run that committed the batch. Nothing here reads a source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transactional.core.store.history import RunRecord
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, PartitionId, PendingMessage
from transactional.model.groupings import DEFAULT_STREAM

STREAM_SEPARATOR = "/"
"""The character between stream and source. No stream has it in its name."""

RUNS_MAX = 100_000
"""A limit above the number of runs that a store keeps, so that all of them are read."""

V = TypeVar("V")


def add_stream_name(stream: str, partition: PartitionId) -> PartitionId:
    """Return a spout's partition under its name in the topology, which begins with the stream."""
    return PartitionId(f"{stream}{STREAM_SEPARATOR}{partition.source}", partition.index)


def split_stream_name(partition: PartitionId) -> tuple[str, PartitionId]:
    """Return the stream of a partition, and the partition under the name that its spout gives.

    The stream is `""` if the name has none.
    """
    stream, separator, source = partition.source.partition(STREAM_SEPARATOR)
    return (stream, PartitionId(source, partition.index)) if separator else ("", partition)


def normalize_origin(source: str, stream: str, spout: str) -> tuple[str, str]:
    """Return component and stream of a tuple, in a form that does not depend on the order of declarations.

    The spout has the id of the stream that is declared first, which is its default stream. A tuple of any other stream
    of the spout is therefore named by its stream alone.
    """
    return (stream, DEFAULT_STREAM) if source == spout and stream != DEFAULT_STREAM else (source, stream)


def current_origin(
    source: str, stream: str, spout: str, streams: Collection[str], bolts: Collection[str]
) -> tuple[str, str]:
    """Return the current component and stream for the recorded ones of a tuple.

    They differ if another one of the spout's streams was declared first when the tuple was recorded.
    """
    name = source if stream == DEFAULT_STREAM else stream
    if source in bolts or (name != spout and name not in streams):
        return source, stream
    return spout, DEFAULT_STREAM if name == spout else name


def find_run(runs: Iterable[RunRecord], txid: TxId) -> RunRecord | None:
    """Return the run that committed a transaction, or else the last run before it. None if no such run is stored.

    `runs` come newest first.
    """
    end: int = txid
    for run in runs:
        if run.began_at_txid < min(end, txid):
            return run
        end = run.began_at_txid
    return None


@dataclass(frozen=True, slots=True)
class StreamNames:
    """The streams that a topology declares now, and the runs that recorded its batches, newest first.

    Without streams the topology has one spout, `only_spout`, whose partitions have no stream in their names. A batch
    that was recorded while it was one of several spouts loses the name of its stream.
    """

    streams: Sequence[str]
    runs: Sequence[RunRecord] = ()
    only_spout: str = ""

    def first_stream(self, txid: TxId) -> str | None:
        """Return the stream that was declared first in the run that committed a transaction (see `find_run`).

        None if no such run is stored, or if its topology is not described.
        """
        run = find_run(self.runs, txid)
        if run is None:
            return None
        stream: str | None = (run.about.topology.get("components") or [{}])[0].get("id")
        return stream

    def with_current_names(self, batch: BatchMetadata, txid: TxId) -> BatchMetadata:
        """Return a batch of this transaction, or of one planned after it, with the current names of its partitions."""
        if not self.streams:
            return self._without_stream_names(batch, txid)
        if all(self._has_known_stream(partition) for partition in batch.ranges):
            return batch
        first = self.first_stream(txid) or self.guess_first_stream(batch)
        # With the first stream's name in the batch, an unknown name in front is that of a removed stream. Otherwise the
        # run had one spout, whose own names may have the separator in them, as paths have.
        has_stream_names = any(split_stream_name(partition)[0] == first for partition in batch.ranges)

        def rename(partition: PartitionId) -> PartitionId:
            is_current = self._has_known_stream(partition) or (has_stream_names and split_stream_name(partition)[0])
            return partition if is_current else add_stream_name(first, partition)

        return _rename_partitions(batch, rename)

    def _without_stream_names(self, batch: BatchMetadata, txid: TxId) -> BatchMetadata:
        has_streams = any(STREAM_SEPARATOR in partition.source for partition in batch.ranges)
        if not has_streams or self.only_spout not in self.past_spouts:
            return batch
        first = self.first_stream(txid)

        def rename(partition: PartitionId) -> PartitionId:
            stream, own_partition = split_stream_name(partition)
            if stream == self.only_spout:
                return own_partition
            is_of_another = first not in (None, self.only_spout) and stream not in self.past_spouts
            return add_stream_name(first or "", partition) if is_of_another else partition

        return _rename_partitions(batch, rename)

    @property
    def past_spouts(self) -> Collection[str]:
        """The ids of the spouts that any stored run had together with others."""
        spouts = ((run.about.topology.get("components") or [{}])[0].get("spouts", ()) for run in self.runs)
        return {spout["id"] for spouts_of_run in spouts for spout in spouts_of_run}

    def guess_first_stream(self, batch: BatchMetadata) -> str:
        """Return the stream that was probably declared first: the first current one that the batch does not name."""
        named_streams = {split_stream_name(partition)[0] for partition in batch.ranges}
        return next((stream for stream in self.streams if stream not in named_streams), self.streams[0])

    def rests_on_guess(self, batch: BatchMetadata, txid: TxId) -> bool:
        """Return whether the current names of a batch depend on `guess_first_stream`, as no stored run knows better."""
        is_certain = len(self.streams) < 2 or self.first_stream(txid) is not None
        return not is_certain and self.with_current_names(batch, txid) is not batch

    def fingerprint(self, current: Mapping[str, Any], stored: Mapping[str, Any], txid: TxId) -> Mapping[str, Any]:
        """Return the current fingerprint in the form of a stored one, in which the only stream has no name."""
        stored_spout = stored.get("spout", {})
        if not self.streams:
            with_names = {f"{self.only_spout}.{key}": entry for key, entry in current["spout"].items()}
            return {**current, "spout": with_names} if with_names.keys() <= stored_spout.keys() else current
        if not stored_spout or all(key.partition(".")[0] in self._all_streams for key in stored_spout):
            return current
        prefix = f"{self.first_stream(txid) or self.streams[0]}."
        return {**current, "spout": {key.removeprefix(prefix): entry for key, entry in current["spout"].items()}}

    def removed_streams(self, batch: BatchMetadata) -> dict[str, bool]:
        """Return the streams of a batch that the topology no longer has, and whether the batch has records of them."""
        has_records = dict[str, bool]()
        for partition in filter(self.is_removed, batch.ranges):
            stream, _ = split_stream_name(partition)
            has_records[stream] = has_records.get(stream, False) or bool(len(batch.ranges[partition]))
        return has_records

    def is_removed(self, partition: PartitionId) -> bool:
        """Return whether a partition, by its current name, is one of a stream that the topology no longer has."""
        stream, _ = split_stream_name(partition)
        return stream not in self.streams if self.streams else bool(stream) and stream in self.past_spouts

    def _has_known_stream(self, partition: PartitionId) -> bool:
        return split_stream_name(partition)[0] in self._all_streams

    @property
    def _all_streams(self) -> set[str]:
        """The current streams, and those of all stored runs."""
        streams = set(self.streams)
        for run in self.runs:
            for spout in (run.about.topology.get("components") or [])[:1]:
                streams |= {spout.get("id", ""), *spout.get("streams", {})} - {"", DEFAULT_STREAM}
        return streams


def _rename_partitions(batch: BatchMetadata, rename: Callable[[PartitionId], PartitionId]) -> BatchMetadata:
    """Return the batch with other names of partitions, some of which it may already have."""

    def rename_keys(by_partition: Mapping[PartitionId, V]) -> dict[PartitionId, V]:
        # If the first stream has entries under both names, those without the stream are newer: they come last.
        in_order = sorted(by_partition, key=lambda partition: rename(partition) != partition)
        return {rename(partition): by_partition[partition] for partition in in_order}

    def rename_messages(messages: Iterable[PendingMessage]) -> tuple[PendingMessage, ...]:
        return tuple(replace(message, partition=rename(message.partition)) for message in messages)

    return replace(
        batch,
        ranges=rename_keys(batch.ranges),
        digests=rename_keys(batch.digests),
        metadata=rename_keys(batch.metadata),
        event_times=rename_keys(batch.event_times),
        listed=rename_keys(batch.listed),
        pending=rename_messages(batch.pending),
        again=rename_messages(batch.again),
    )
