"""The truth, kept outside of the system: what the committed ranges of the log amount to."""

from __future__ import annotations

from collections import Counter

from state.memory import MemoryTable
from tests.simulation.faults import demand
from tests.simulation.source import Source, record
from tests.simulation.tables import TOTAL, counts_seen
from transactional.attempt import TxId
from transactional.batch import BatchMetadata, PartitionId


class Oracle:
    """Sums over the committed ranges; every offset is in exactly one transaction, unless the source has lost it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.txid = TxId(0)
        self.totals: Counter[str] = Counter()
        self.read_until: Counter[PartitionId] = Counter()

    def commit(self, txid: TxId, batch: BatchMetadata) -> None:
        demand(txid == self.txid + 1, f"transaction {txid} is committed after {self.txid}")
        self.txid = txid
        for partition, offsets in batch.ranges.items():
            self.check_start(partition, offsets.start, txid)
            for offset in range(offsets.start, offsets.until):
                key, amount = record(partition, offset)
                self.totals[key] += amount
            self.read_until[partition] = offsets.until

    def check_start(self, partition: PartitionId, start: int, txid: TxId) -> None:
        """A range starts where the last one ended, or at most where the log starts that has lost what was before."""
        ended, lost_until = self.read_until[partition], self.source.partitions[partition].start
        demand(start >= ended, f"{partition}: transaction {txid} reads from {start}, but {ended} was reached already")
        demand(
            start <= max(ended, lost_until), f"{partition}: transaction {txid} reads from {start}, and skips {ended}"
        )

    def check(self, table: MemoryTable) -> None:
        seen, right = counts_seen(table, self.txid), dict(self.totals)
        if table.name == TOTAL and right:
            right = {TOTAL: sum(right.values())}
        demand(seen == right, f"table {table.name} is seen as {seen} at transaction {self.txid}, and should be {right}")

    def is_everything_committed(self) -> bool:
        there = [(name, log) for name, log in self.source.partitions.items() if not log.is_gone and log.start < log.end]
        return all(self.read_until[name] == log.end for name, log in there)
