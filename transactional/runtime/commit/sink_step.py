"""The step of a sink: tuples are encoded like those of any bolt; the records wait for the transaction commit."""

from __future__ import annotations

import pyarrow as pa

from transactional.model.attempt import TransactionAttempt
from transactional.runtime.commit.bolt_steps import BoltStep
from transactional.runtime.commit.commit_steps import CommitContext
from transactional.runtime.commit.commit_task import CommitTask
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.publishing.payloads import encode_payload
from transactional.runtime.tasks.operators import ArrowBatchOperator
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.steps import Step
from transactional.topology.topology import Component


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
            exchange.outbox[self.component.id] = encode_payload(pa.concat_tables(tables))
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
