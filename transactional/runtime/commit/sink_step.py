"""The step of a sink: tuples are encoded like those of any bolt; the records wait for the transaction commit."""

from __future__ import annotations

import pyarrow as pa

from transactional.core.store.outbox import PAYLOAD_BYTES_MAX, SinkRecords
from transactional.model.errors import RecordRefused
from transactional.runtime.commit.bolt_steps import BoltStep
from transactional.runtime.commit.commit_steps import CommitContext
from transactional.runtime.commit.commit_task import CommitTask
from transactional.runtime.commit.exchange import CommitExchange
from transactional.runtime.publishing.payloads import encode_payload
from transactional.topology.bolts.sink_bolt import SinkBolt
from transactional.topology.steps import Step
from transactional.topology.topology import Component


class SinkStep(BoltStep):
    """Collects the records of a sink in the order of its tasks. Nothing is published here."""

    def __init__(self, plan: Step, component: Component, context: CommitContext) -> None:
        super().__init__(plan, component, context)
        self._records: list[pa.Table] = []

    def _run_in_driver(self, exchange: CommitExchange) -> None:
        self._records = []
        super()._run_in_driver(exchange)
        if self._records:
            exchange.outbox[self.component.id] = self._checked(exchange, pa.concat_tables(self._records))
        self._records = []

    def _collect(self, task: CommitTask) -> None:
        for operator in task.operators.values():
            bolt = getattr(operator, "bolt", None)
            assert isinstance(bolt, SinkBolt)
            self._records += bolt.records

    def _checked(self, exchange: CommitExchange, table: pa.Table) -> SinkRecords:
        """Compress the records. Raises `RecordRefused` if they are too large for a row of the outbox."""
        records = encode_payload(table)
        if (size_bytes := len(records.payload)) > PAYLOAD_BYTES_MAX:
            raise RecordRefused(
                f"sink {self.component.id!r}: the {records.count} records of transaction {exchange.attempt.txid} take "
                f"{size_bytes} bytes compressed, more than the {PAYLOAD_BYTES_MAX} that an outbox row holds; make the "
                "batches of the spout smaller"
            )
        return records
