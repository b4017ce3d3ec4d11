"""The step of a sink: tuples are encoded like those of any bolt; the records wait for the transaction commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from transactional.core.ports import Sink
from transactional.core.ports.dead_letters import LETTER_FIELDS
from transactional.core.store.outbox import SinkRecords
from transactional.model.arrow.conversions import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import SchemaMismatch
from transactional.model.names import DEAD_LETTERS
from transactional.model.user_code.tuples import Key
from transactional.runtime.commit.bolt_steps import BoltStep
from transactional.runtime.commit.commit_steps import CommitContext
from transactional.runtime.commit.commit_task import CommitTask
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.publishing.payloads import encode_payload
from transactional.runtime.tasks.operators import ArrowBatchOperator
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.steps import Step
from transactional.topology.topology import Component

_log = logging.getLogger(__name__)


class SinkStep(BoltStep):
    """Collects the records of a sink in the order of its tasks. Nothing is published here."""

    def __init__(self, plan: Step, component: Component, context: CommitContext) -> None:
        super().__init__(plan, component, context)
        self._records: list[pa.Table] = []
        self._staged: list[pa.Table] = []

    def _run_in_driver(self, exchange: CommitExchange) -> None:
        self._records, self._staged = [], []
        super()._run_in_driver(exchange)
        if tables := self._stage(exchange.attempt):
            assert self.component.sink is not None
            exchange.outbox[self.component.id] = _payload_of(self.component.sink, pa.concat_tables(tables))
        self._records, self._staged = [], []

    def _stage(self, attempt: TransactionAttempt) -> list[pa.Table]:
        """Check what tasks have staged, and stage the other records."""
        sink = self.component.sink
        assert sink is not None
        if self._staged:
            sink.check_staged(attempt, pa.concat_tables(self._staged))
        return [*self._staged, *([sink.stage(attempt, pa.concat_tables(self._records))] if self._records else [])]

    def _collect(self, task: CommitTask) -> None:
        for operator in task.operators.values():
            assert isinstance(operator, ArrowBatchOperator)
            assert isinstance(operator.bolt, SinkBolt)
            self._records += operator.bolt.records
            self._staged += operator.bolt.staged


def letter_records(
    sink: Sink, attempt: TransactionAttempt, letters: Mapping[Key, tuple[Any, ...]]
) -> dict[str, SinkRecords]:
    """Return the records of new dead letters. A letter that the target would refuse is in its table only."""
    schema, records = arrow_schema(LETTER_FIELDS), list[pa.Table]()
    for key, columns in letters.items():
        letter = dict(zip(schema.names, (*key, *columns), strict=True))
        try:
            records.append(sink.encode(pa.RecordBatch.from_pylist([letter], schema)))
        except SchemaMismatch as error:
            _log.warning("dead letter %d of transaction %d is not published: %s", key[1], attempt.txid, error)
    return {DEAD_LETTERS: _payload_of(sink, sink.stage(attempt, pa.concat_tables(records)))} if records else {}


def _payload_of(sink: Sink, staged: pa.Table) -> SinkRecords:
    return encode_payload(staged, sink.checksum(staged))
