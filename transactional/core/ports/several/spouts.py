"""`SeveralSpouts`: several spouts as one `Spout`.

The engine knows a single spout. `SeveralSpouts` plans with each of its spouts, and puts the name of the stream in front
of their partitions (`stream_names`); every call that comes back with such a partition goes to the spout of its stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from transactional.core.ports import Spout
from transactional.core.ports.several.batches import part_of_removed, part_of_stream, without_records
from transactional.core.ports.several.parts import (
    ExaminationOfSources,
    ReplaysOfParts,
    RoutedMessages,
    SharedPlanning,
    SummedBacklog,
)
from transactional.core.ports.several.readers import SeveralReaders
from transactional.core.ports.spout_parts import SourceOfStream, SpoutParts, Streams
from transactional.core.ports.stream_names import add_stream_name
from transactional.model.batch import BatchMetadata
from transactional.model.errors import ConfigError
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import read_identity


class SeveralSpouts(Spout):
    """Spouts by the name of their stream, as one `Spout`.

    There is a batch as soon as one of the spouts has one. A batch is replayed exactly if all spouts do that. `tasks` is
    the number of tasks that read a spout, for those that not all of the component's tasks read.
    """

    def __init__(self, spouts: Mapping[str, Spout], tasks: Mapping[str, int] | None = None) -> None:
        for name, spout in spouts.items():
            if len(spouts) > 1 and len(spout.parts.streams.outputs) > 1:
                raise ConfigError(f"stream {name!r}: its spout has several streams, so it must be the only one")
        self.spouts, self.tasks = dict(spouts), dict(tasks or {})
        self.first = next(iter(spouts))
        self._planning = SharedPlanning(self.spouts)

    @property
    def output(self) -> Schema:
        """The fields of the first stream."""
        return self.spouts[self.first].output

    @property
    def replays_exactly(self) -> bool:
        """True if all spouts replay a recorded batch exactly."""
        return all(spout.replays_exactly for spout in self.spouts.values())

    @property
    def parts(self) -> SpoutParts:
        """The parts of all spouts, combined."""
        return SpoutParts(
            self._streams(),
            self._planning,
            SummedBacklog(self.spouts),
            ReplaysOfParts(self.spouts),
            RoutedMessages(self.spouts),
            ExaminationOfSources(self.spouts),
        )

    def _streams(self) -> Streams:
        """Return the streams of all spouts, those of the first spout under the default stream."""
        first = self.spouts[self.first].parts.streams
        further_outputs = {name: spout.output for name, spout in self.spouts.items() if name != self.first}
        outputs, event_times, names = {**first.outputs, **further_outputs}, dict(first.event_times), tuple(self.spouts)
        if len(self.spouts) == 1:
            return Streams(outputs, first.kind, event_times, names)
        streams = {name: spout.parts.streams for name, spout in self.spouts.items()}
        for name in names[1:]:
            if (own_time := streams[name].event_times.get(DEFAULT_STREAM)) is not None:
                event_times[name] = own_time
        sources = [SourceOfStream(name, streams[name].kind, self.tasks.get(name)) for name in names]
        return Streams(outputs, type(self).__name__, event_times, names, sources)

    def reader(self) -> SeveralReaders:
        """Return a reader that passes each partition to the reader of its spout."""
        return SeveralReaders({name: spout.reader() for name, spout in self.spouts.items()}, self.first, self.tasks)

    def identity(self) -> Mapping[str, str]:
        """Return the identities of all spouts, with the name of the stream in front of each key."""
        return {
            f"{name}.{key}": text for name, spout in self.spouts.items() for key, text in read_identity(spout).items()
        }

    def open(self) -> None:
        """Open the spouts, one after the other."""
        for spout in self.spouts.values():
            spout.open()

    def close(self) -> None:
        """Close all spouts, even if closing one of them raises."""
        with ExitStack() as stack:
            for spout in self.spouts.values():
                stack.callback(spout.close)

    def copy_unopened(self) -> Self:
        """Return an unopened copy that is made of unopened copies of the spouts."""
        return type(self)({name: spout.copy_unopened() for name, spout in self.spouts.items()}, self.tasks)

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan a batch with each spout. A spout that has nothing new keeps its positions."""
        positions = {name: part_of_stream(name, previous_batch) for name in self.spouts}
        planned = self._planning.plan_each(positions, replay=replay)
        if all(batch is None for batch in planned.values()):
            return None
        parts = {
            name: batch if batch is not None else without_records(positions[name]) for name, batch in planned.items()
        }
        splits = [batch.split_records for batch in parts.values() if batch.split_records is not None]
        removed = without_records(part_of_removed(self.spouts, previous_batch))
        ranges, metadata = dict(removed.ranges), dict(removed.metadata)
        for name, batch in parts.items():
            ranges |= {add_stream_name(name, partition): range for partition, range in batch.ranges.items()}
            metadata |= {add_stream_name(name, partition): entry for partition, entry in batch.metadata.items()}
        return BatchMetadata(ranges, metadata=metadata, split_records=min(splits, default=None))

    def committed(self, batch: BatchMetadata) -> None:
        """Notify each spout of the commit of its part."""
        for name, spout in self.spouts.items():
            spout.committed(part_of_stream(name, batch))
