"""The truth, kept outside of the system: what the committed ranges of the log amount to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from state.memory import MemoryTable
from tests.simulation.changes import CHANGES
from tests.simulation.expiring import GONE, Expired
from tests.simulation.faults import demand
from tests.simulation.source import Source, record
from tests.simulation.stateful import FULL
from tests.simulation.tables import LATE, TOTAL, SimulatedTable
from transactional.model.absent import ABSENT
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, PartitionId


class Oracle:
    """Sums over the committed ranges; every offset is in exactly one transaction, unless the source has lost it."""

    def __init__(self, source: Source, stateful: Collection[str] = ()) -> None:
        self.source, self.stateful = source, stateful
        self.left: Counter[str] = Counter()
        """What a stateful bolt has left, which deletes a word whose sum is full."""
        self.changes: Counter[str] = Counter()
        """The totals of each word after each transaction that has changed it, added up."""
        self.expired = Expired()
        """Where keys expire: those that are there, and those that have passed on."""
        self.expires = False
        self.txid = TxId(0)
        self.totals: Counter[str] = Counter()
        self.read_until: dict[PartitionId, int] = {}
        self.joined: dict[str, Counter[str]] = {}
        """What had been counted when a committer joined."""
        self.letters: list[tuple[int, str]] = []

    def record(self, batch: BatchMetadata) -> None:
        """A batch is recorded: it says where the partitions begin that no other one has named."""
        for partition, offsets in batch.ranges.items():
            self.read_until.setdefault(partition, offsets.start)

    def commit(self, txid: TxId, batch: BatchMetadata) -> None:
        demand(txid == self.txid + 1, f"transaction {txid} is committed after {self.txid}")
        self.txid = txid
        counted = self.totals.copy()
        records: list[tuple[str, int]] = []
        left_out = {exclusion.fingerprint for exclusion in batch.excluded}
        for partition, offsets in batch.ranges.items():
            self.check_start(partition, offsets.start, txid)
            for offset in range(offsets.start, offsets.until):
                if left_out and f"{partition}@{offset}" in left_out:
                    demand((partition, offset) in self.source.poison, f"{partition}@{offset} is set aside for nothing")
                    self.letters.append((txid, f"{partition}@{offset}"))
                    continue
                key, amount = record(partition, offset)
                self.totals[key] += amount
                records.append((key, amount))
            self.read_until[partition] = offsets.until
        for key, amount in (self.totals - counted).items():
            self.left[key] += amount
            if self.left[key] % FULL == 0:
                del self.left[key]
            self.changes[key] += self.totals[key]
        if self.expires:
            demand(batch.facts is not None, f"transaction {txid} has recorded no time")
            self.expired.commit(batch.facts.time_ms if batch.facts else 0, records)

    def check_start(self, partition: PartitionId, start: int, txid: TxId) -> None:
        """A range starts where the last one ended, or at most where the log starts that has lost what was before."""
        ended, lost_until = self.read_until[partition], self.source.partitions[partition].start
        demand(start >= ended, f"{partition}: transaction {txid} reads from {start}, but {ended} was reached already")
        demand(
            start <= max(ended, lost_until), f"{partition}: transaction {txid} reads from {start}, and skips {ended}"
        )

    def join(self, component_id: str) -> None:
        """From now on there is one more committer; it counts what is committed from now on."""
        self.joined[component_id] = self.totals.copy()

    def check_letters(self, table: MemoryTable) -> None:
        """Each tuple that was set aside is there once, under its transaction."""
        found = Counter(key[0] for key, row in table.rows.items() if row.value_for_reader(self.txid) is not ABSENT)
        right = Counter(txid for txid, _ in self.letters)
        demand(found == right, f"dead letters by transaction are {dict(found)}, and should be {dict(right)}")

    def check(self, table: SimulatedTable) -> None:
        before = self.totals if table.name == LATE else Counter[str]()
        seen, right = table.seen(self.txid), dict(self.totals - self.joined.get(table.name, before))
        if table.name in self.stateful:
            right = dict(self.left)
        if table.name == CHANGES:
            right = dict(self.changes)
        if self.expires and table.name in ("words", GONE):
            right = self.expired.counts() if table.name == "words" else dict(self.expired.gone)
        if table.name == TOTAL and right:
            right = {TOTAL: sum(right.values())}
        demand(seen == right, f"table {table.name} is seen as {seen} at transaction {self.txid}, and should be {right}")

    def is_everything_committed(self) -> bool:
        there = [(name, log) for name, log in self.source.partitions.items() if not log.is_gone and log.start < log.end]
        return all(self.read_until.get(name) == log.end for name, log in there)
