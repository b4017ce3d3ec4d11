"""Names of partitions in a topology of streams: the stream, then the name that the stream's spout gives.

The only spout of a topology has no stream in the names of its partitions, and gets one when another spout joins. What
was recorded before is brought into today's form here: which spout was alone stands in the description of the run that
has committed it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from transactional.core.store.history import RunRecord
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, PartitionId, PendingMessage
from transactional.model.groupings import DEFAULT_STREAM

BETWEEN = "/"
"""Between stream and source. No stream has it in its name."""

RUNS_MAX = 100_000
"""All that are kept."""

V = TypeVar("V")


def of_stream(stream: str, partition: PartitionId) -> PartitionId:
    """A spout's partition as one of the topology."""
    return replace(partition, source=f"{stream}{BETWEEN}{partition.source}")


def taken_apart(partition: PartitionId) -> tuple[str, PartitionId]:
    """The stream, and the partition as its spout knows it; `""` for one without a stream."""
    stream, between, source = partition.source.partition(BETWEEN)
    return (stream, replace(partition, source=source)) if between else ("", partition)


def origin_of(source: str, stream: str, spout: str) -> tuple[str, str]:
    """Where a tuple comes from, by the stream's own name if it is one of the spout's: which of several is declared
    first, and so gives the spout its id and has the default stream, makes no difference."""
    return (stream, DEFAULT_STREAM) if source == spout and stream != DEFAULT_STREAM else (source, stream)


def origin_today(
    source: str, stream: str, spout: str, streams: Collection[str], bolts: Collection[str]
) -> tuple[str, str]:
    """Where a tuple comes from today that was recorded as coming from there, when another one of the spout's streams
    may have been declared first."""
    name = source if stream == DEFAULT_STREAM else stream
    if source in bolts or (name != spout and name not in streams):
        return source, stream
    return spout, DEFAULT_STREAM if name == spout else name


def run_of(runs: Iterable[RunRecord], txid: TxId) -> RunRecord | None:
    """Of the runs, newest first, the one that has committed a transaction, or the last one before; None: no such run is
    stored."""
    until: int = txid
    for run in runs:
        if run.began_at_txid < min(until, txid):
            return run
        until = run.began_at_txid
    return None


@dataclass(frozen=True, slots=True)
class StreamNames:
    """The streams of a topology, as they are declared today, and the runs that have recorded its batches, newest first.

    Without streams the topology has one spout, `alone`, whose partitions have its own names. What was recorded when it
    was one of several loses the name of its stream.
    """

    streams: Sequence[str]
    runs: Sequence[RunRecord] = ()
    alone: str = ""

    def first(self, txid: TxId) -> str | None:
        """The stream that the run which has committed a transaction, or the last one before, has declared first; None:
        no such run is stored, or it is not described."""
        run = run_of(self.runs, txid)
        if run is None:
            return None
        first: str | None = (run.about.topology.get("components") or [{}])[0].get("id")
        return first

    def today(self, batch: BatchMetadata, txid: TxId) -> BatchMetadata:
        """A batch, of this transaction or after it, with the names that its partitions have today."""
        if not self.streams:
            return self._today_alone(batch, txid)
        if all(self._is_named(partition) for partition in batch.ranges):
            return batch
        first = self.first(txid) or self.guessed(batch)
        # In a batch of today others with an unknown name in front are those of streams that are gone for long.
        is_of_today = any(taken_apart(partition)[0] == first for partition in batch.ranges)

        def name(partition: PartitionId) -> PartitionId:
            is_kept = self._is_named(partition) or (is_of_today and taken_apart(partition)[0])
            return partition if is_kept else of_stream(first, partition)

        return _renamed(batch, name)

    def _today_alone(self, batch: BatchMetadata, txid: TxId) -> BatchMetadata:
        if not any(BETWEEN in partition.source for partition in batch.ranges) or self.alone not in self.spouts:
            return batch
        before = self.first(txid)

        def name(partition: PartitionId) -> PartitionId:
            stream, own = taken_apart(partition)
            if stream == self.alone:
                return own
            is_of_another = before not in (None, self.alone) and stream not in self.spouts
            return of_stream(before or "", partition) if is_of_another else partition

        return _renamed(batch, name)

    @property
    def spouts(self) -> Collection[str]:
        """The spouts that any run has had together with others."""
        spouts = ((run.about.topology.get("components") or [{}])[0].get("spouts", ()) for run in self.runs)
        return {each["id"] for of_run in spouts for each in of_run}

    def guessed(self, batch: BatchMetadata) -> str:
        """The stream that was declared first, if no run says so: the first of today's that the batch does not name."""
        named = {taken_apart(partition)[0] for partition in batch.ranges}
        return next((stream for stream in self.streams if stream not in named), self.streams[0])

    def is_guess(self, batch: BatchMetadata, txid: TxId) -> bool:
        """Whether no run says whose some of a batch's partitions are."""
        is_one = len(self.streams) < 2 or self.first(txid) is not None
        return not is_one and self.today(batch, txid) is not batch

    def fingerprint(self, given: Mapping[str, Any], stored: Mapping[str, Any], txid: TxId) -> Mapping[str, Any]:
        """The fingerprint of today, in the form of a stored one: that of a single stream did not name it."""
        before = stored.get("spout", {})
        if not self.streams:
            named = {f"{self.alone}.{key}": value for key, value in given["spout"].items()}
            return {**given, "spout": named} if named.keys() <= before.keys() else given
        if not before or all(key.partition(".")[0] in self._known for key in before):
            return given
        prefix = f"{self.first(txid) or self.streams[0]}."
        return {**given, "spout": {key.removeprefix(prefix): value for key, value in given["spout"].items()}}

    def gone(self, batch: BatchMetadata) -> dict[str, bool]:
        """The streams of a batch that the topology no longer has, and whether the batch has records of them."""
        gone = dict[str, bool]()
        for partition in filter(self.is_gone, batch.ranges):
            stream, _ = taken_apart(partition)
            gone[stream] = gone.get(stream, False) or bool(len(batch.ranges[partition]))
        return gone

    def is_gone(self, partition: PartitionId) -> bool:
        """Whether a partition, by its name of today, is one of a stream that the topology no longer has."""
        stream, _ = taken_apart(partition)
        return stream not in self.streams if self.streams else bool(stream) and stream in self.spouts

    def _is_named(self, partition: PartitionId) -> bool:
        return taken_apart(partition)[0] in self._known

    @property
    def _known(self) -> set[str]:
        """All streams that there have been."""
        known = set(self.streams)
        for run in self.runs:
            for component in (run.about.topology.get("components") or [])[:1]:
                known |= {component.get("id", ""), *component.get("streams", {})} - {"", DEFAULT_STREAM}
        return known


def _renamed(batch: BatchMetadata, name: Callable[[PartitionId], PartitionId]) -> BatchMetadata:
    """The batch with other names of partitions, of which some may already be there."""

    def renamed(of: Mapping[PartitionId, V]) -> dict[PartitionId, V]:
        # Where the first stream's are there under both names, the ones without are newer.
        return {name(partition): of[partition] for partition in sorted(of, key=lambda each: name(each) != each)}

    def messages(of: Iterable[PendingMessage]) -> tuple[PendingMessage, ...]:
        return tuple(replace(message, partition=name(message.partition)) for message in of)

    return replace(
        batch,
        ranges=renamed(batch.ranges),
        digests=renamed(batch.digests),
        metadata=renamed(batch.metadata),
        event_times=renamed(batch.event_times),
        listed=renamed(batch.listed),
        pending=messages(batch.pending),
        again=messages(batch.again),
    )
