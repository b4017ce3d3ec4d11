"""What the components of a topology emit, kept while it runs in this process: see `testing.complete_topology`."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TransactionAttempt
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.user_code.tuples import Tuple
from transactional.topology.topology import HIDDEN, Topology

Emitted = dict[str | tuple[str, str], list[Tuple]]
"""The tuples of a component's default stream by component, and by component and stream those of others."""


class Recorder:
    """A `Record` that keeps everything, of attempts that fail as well."""

    def __init__(self) -> None:
        self._batches: dict[TransactionAttempt, list[tuple[str, str, pa.RecordBatch]]] = {}

    def __call__(self, attempt: TransactionAttempt, component: str, stream: str, batch: pa.RecordBatch) -> None:
        """Record the emitted tuples of an attempt."""
        self._batches.setdefault(attempt, []).append((component, stream, batch))

    def emitted(self, topology: Topology, attempts: Iterable[TransactionAttempt]) -> Emitted:
        """Return the tuples that these attempts emitted, one after the other, for every stream that a component
        declares."""
        tuples_by_stream: Emitted = {}
        hidden = HIDDEN.names if topology.follows_messages else ()
        for source in (topology.spout_id, *(component.id for component in topology.components)):
            streams = [stream for stream in topology.outputs_of(source) if not stream.startswith("__")]
            tuples_by_stream |= {source if stream == DEFAULT_STREAM else (source, stream): [] for stream in streams}
        for attempt in attempts:
            for source, stream, batch in self._batches.get(attempt, []):
                if stream.startswith("__"):
                    continue
                visible = batch.select([name for name in batch.schema.names if name not in hidden])
                tuples_by_stream[source if stream == DEFAULT_STREAM else (source, stream)] += tuples(
                    visible, source, stream
                )
        return tuples_by_stream
