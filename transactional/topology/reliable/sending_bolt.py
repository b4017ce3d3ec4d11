"""`SendingBolt`: a sink in a topology that is at least once. It sends records in its tasks, without an outbox.

A tuple is acked once its record is at the target. So a message is done after its records are sent, and a message that
comes again, or a batch that is repeated, sends its records again. A tuple that can't be encoded, or whose record the
target refuses, fails with its message. A target that is away fails the whole attempt, which is repeated: the tries of
messages are not used up by an outage.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from transactional.core.ports import Sink
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.errors import SchemaMismatch, SinkUnavailable
from transactional.model.schema import Schema
from transactional.model.user_code.failures import TaskFailed
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.reliable.bolts import RichBolt, TupleCollector

TUPLES_MAX: Final = 10_000
"""The number of tuples that are sent together."""

Origin = tuple[str, str]


class SendingBolt(RichBolt):
    """Sends the tuples of one task to a sink. `inputs` has the fields of each source and stream, set at build."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.inputs: dict[Origin, Schema] = {}

    def prepare(self, context: TopologyContext, collector: TupleCollector) -> None:
        self._component, self._collector = context.component_id, collector
        self._waiting: dict[Origin, list[Tuple]] = {}

    def execute(self, tuple: Tuple) -> None:
        origin = (tuple.source, tuple.stream)
        tuples = self._waiting.setdefault(origin, [])
        tuples.append(tuple)
        if len(tuples) >= TUPLES_MAX:
            self._send(self._waiting.pop(origin), self.inputs[origin])

    def finish_batch(self) -> None:
        for origin, tuples in self._waiting.items():
            self._send(tuples, self.inputs[origin])

    def _send(self, tuples: list[Tuple], fields: Schema) -> None:
        encoded = self._encode(tuples, fields)
        if not encoded:
            return
        try:
            refusals = self.sink.send(pa.concat_tables(records for _, records in encoded))
        except SinkUnavailable as error:
            raise TaskFailed(error.code, self._component, str(error)) from error
        sent = [row for rows, _ in encoded for row in rows]
        for number, row in enumerate(sent):
            if number in refusals:
                self._collector.fail(row, refusals[number])
            else:
                self._collector.ack(row)

    def _encode(self, tuples: list[Tuple], fields: Schema) -> list[tuple[list[Tuple], pa.Table]]:
        """Return the records of tuples, which are encoded one by one if one of them can't be: that one fails."""
        schema = arrow_schema(fields)
        try:
            return [(tuples, self.sink.encode(batch_from_rows(tuples, schema, component=self._component)))]
        except SchemaMismatch as error:
            if len(tuples) == 1:
                self._collector.fail(tuples[0], str(error))
                return []
        return [encoded for row in tuples for encoded in self._encode([row], fields)]
