"""`CountedRecords`: which of the records that a topology reads reach one of its components.

`verify` compares a count with the number of records that were read, and a topology may read several streams. The
checker knows no topology, so it is handed this function for the partitions that the store names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from transactional.core.ports.stream_names import add_stream_name, split_stream_name
from transactional.model.batch import PartitionId
from transactional.model.groupings import DEFAULT_STREAM
from transactional.topology.topology import Topology


@dataclass(frozen=True)
class CountedRecords:
    """A function that returns whether a partition's records reach a component: True, False, or None if it is unknown.

    It is unknown if the partition's stream is no longer in the topology, or is not in the partition's name and may be
    any of several. `read_former_spouts` returns the spouts of earlier runs that had several: the names of their
    partitions begin with the spout's.
    """

    topology: Topology
    component: str
    read_former_spouts: Callable[[], frozenset[str]] = field(default=frozenset, repr=False)

    def __call__(self, partition: tuple[str, int]) -> bool | None:
        """Look up a partition by its present name, the source and the index."""
        stored, names = PartitionId(*partition), tuple(self.topology.spout.parts.streams.names)
        stream, partition_in_stream = split_stream_name(stored)
        if not names and stream and stream in self._former_spouts:
            names, stored = (self.topology.spout_id,), partition_in_stream
        elif len(names) == 1 and not stream:
            stream, stored = names[0], add_stream_name(names[0], stored)
        return None if names and stream not in names else self._stream_of(stored) in self._streams

    @cached_property
    def _streams(self) -> set[str]:
        """The spout's streams that reach the component, directly or through bolts."""
        streams, pending, visited = set[str](), [self.component], set[str]()
        while pending:
            component = pending.pop()
            visited.add(component)
            for grouping in self.topology.component(component).inputs:
                if grouping.source == self.topology.spout_id:
                    streams.add(grouping.stream)
                elif grouping.source not in visited:
                    pending.append(grouping.source)
        return streams

    def _stream_of(self, partition: PartitionId) -> str:
        spout = self.topology.spout
        return spout.reader().stream_of(partition) if len(spout.parts.streams.outputs) > 1 else DEFAULT_STREAM

    @cached_property
    def _former_spouts(self) -> frozenset[str]:
        return self.read_former_spouts()
