"""`CountedRecords`: which of the records that a topology reads reach one of its components.

`verify` compares a count with the records that were read, and a topology may read several streams. The checker knows no
topology: it is given this answer for each partition that the store names.
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
    """Says of a partition whether its records reach a component: True, False, or None if its stream is gone, or is not
    in its name and may be any of several.

    `read_former_spouts` reads from the store which spouts earlier runs had, when there were several: the names of their
    partitions begin with them.
    """

    topology: Topology
    component: str
    read_former_spouts: Callable[[], frozenset[str]] = field(default=frozenset, repr=False)

    def __call__(self, partition: tuple[str, int]) -> bool | None:
        """Take a partition by its name of today: source and index."""
        read, names = PartitionId(*partition), tuple(self.topology.spout.streams)
        stream, own = split_stream_name(read)
        if not names and stream and stream in self._former_spouts:
            names, read = (self.topology.spout_id,), own
        elif len(names) == 1 and not stream:
            stream, read = names[0], add_stream_name(names[0], read)
        return None if names and stream not in names else self._stream_of(read) in self._streams

    @cached_property
    def _streams(self) -> set[str]:
        """The spout's streams that reach the component, directly or through bolts."""
        streams, pending, seen = set[str](), [self.component], set[str]()
        while pending:
            component = pending.pop()
            seen.add(component)
            for grouping in self.topology.component(component).inputs:
                if grouping.source == self.topology.spout_id:
                    streams.add(grouping.stream)
                elif grouping.source not in seen:
                    pending.append(grouping.source)
        return streams

    def _stream_of(self, partition: PartitionId) -> str:
        spout = self.topology.spout
        return spout.reader().stream_of(partition) if len(spout.outputs) > 1 else DEFAULT_STREAM

    @cached_property
    def _former_spouts(self) -> frozenset[str]:
        return self.read_former_spouts()
