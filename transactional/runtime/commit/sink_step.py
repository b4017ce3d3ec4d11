"""The step of a sink: tuples are encoded like those of any bolt; the records wait for the transaction commit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
        self._bolts: list[SinkBolt] = []

    def _run_in_driver(self, exchange: CommitExchange) -> None:
        self._bolts = []
        super()._run_in_driver(exchange)
        sink, bolts = self.component.sink, self._bolts
        assert sink is not None
        records = [table for bolt in bolts for table in bolt.records]
        staged = [table for bolt in bolts for table in bolt.staged]
        if staged:
            sink.check_staged(exchange.attempt, pa.concat_tables(staged))
        count = sum(bolt.staged_count for bolt in bolts)
        if records or staged:
            exchange.outbox[self.component.id] = stage_records(sink, exchange.attempt, records, staged, count)
        self._bolts = []

    def _collect(self, task: CommitTask) -> None:
        for operator in task.operators.values():
            assert isinstance(operator, ArrowBatchOperator)
            assert isinstance(operator.bolt, SinkBolt)
            self._bolts.append(operator.bolt)


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
    return {DEAD_LETTERS: stage_records(sink, attempt, records)} if records else {}


def stage_records(
    sink: Sink,
    attempt: TransactionAttempt,
    records: Sequence[pa.Table],
    staged: Sequence[pa.Table] = (),
    staged_count: int = 0,
) -> SinkRecords:
    """Stage encoded records, and return them with those that tasks have staged, `staged_count` of them, for the outbox.

    There is at least one table of either.
    """
    tables = [*staged, *([sink.stage(attempt, pa.concat_tables(records))] if records else [])]
    table, count = pa.concat_tables(tables), staged_count + sum(part.num_rows for part in records)
    return encode_payload(table, count, sink.checksum(table))
