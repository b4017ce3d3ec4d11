"""`SinkBolt`: the component of a sink: it encodes its tuples in tasks, and the commit phase collects the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from transactional.core.ports import Sink
from transactional.model.attempt import TransactionAttempt
from transactional.topology.bolts.bolts import ArrowBatchBolt, OutputCollector, TopologyContext

if TYPE_CHECKING:
    import pyarrow as pa


class SinkBolt(ArrowBatchBolt):
    """Encodes the tuples of one task. A tuple that can't be encoded is a bad tuple, like one that any bolt fails on."""

    kind: ClassVar[str] = "sink"

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.hidden_fields: frozenset[str] = frozenset()
        """The fields of tuples that the sink does not see, because no user has named them."""
        self.records: list[pa.Table] = []
        self.staged: list[pa.Table] = []
        """Tables that the sink has staged, in place of the records that it was given."""
        self.staged_count = 0
        """The number of the records that were staged. A staged table may have one row for many of them."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Keep nothing: records depend on the tuples alone."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Encode some tuples of the batch, and keep the records."""
        if batch.num_rows:
            names = batch.schema.names
            is_hidden = not self.hidden_fields.isdisjoint(names)
            visible = batch.select([name for name in names if name not in self.hidden_fields]) if is_hidden else batch
            self.records.append(self.sink.encode(visible))
