"""The tables of `python -m bench tables`: states that note how long their writes took."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from state.delta.open_table import OpenTable
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from transactional.core.ports import Partials
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId

KEYS = 20_000
"""Keys that a transaction touches."""
OWNER = "bench/tables"
COMPACTION_S = 600
"""A compaction takes no longer."""
_COMPACTED = re.compile(r"#compaction\"[^}]*?\"version\"\s*:\s*(\d+)")
RETENTIONS = ("delta.logRetentionDuration", "delta.deletedFileRetentionDuration")
BATCHES = 40
"""Different batches, which are used again and again."""


class TimedState(DeltaMapState):
    """A state that notes how long a write took, and what was done to the table after it, in milliseconds."""

    writes: list[float]
    upkeep: list[float]

    def _write(
        self, attempt: TransactionAttempt, rows: pa.Table, combine: Mapping[str, str], apply: Any = None
    ) -> None:
        before = perf_counter()
        super()._write(attempt, rows, combine, apply)
        written = perf_counter()
        self.parts.maintenance.maintain(attempt.txid, lambda: True)
        self.writes.append((written - before) * 1e3)
        self.upkeep.append((perf_counter() - written) * 1e3)

    @property
    def handle(self) -> OpenTable:
        """The open table."""
        return self.open_table


@dataclass(slots=True)
class Table:
    """A table of `keys` keys, and how far it is."""

    keys: int
    layout: str | LogLayout
    path: Path
    how: str = "sum"
    retention: str = ""
    """For how long log and removed files are kept, where not as usual."""
    txid: int = 0
    state: TimedState = field(init=False)
    batches: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        values = pa.array(range(self.keys), pa.int64())
        keys = pc.binary_join_element_wise("key-", pc.utf8_lpad(pc.cast(values, pa.string()), 8, "0"), "")
        chance = random.Random(self.keys)
        for _ in range(BATCHES):
            chosen = keys.take(pa.array(chance.sample(range(self.keys), min(KEYS, self.keys))))
            self.batches.append(pa.table({"key": chosen, "count": pa.repeat(pa.scalar(1), len(chosen))}))
        properties = dict.fromkeys(RETENTIONS, self.retention) if self.retention else {}
        options: dict[str, Any] = {"layout": self.layout, "engine": "delta-rs", "properties": properties}
        self.state = TimedState(self.path, "key string", "count long", **options)
        self.state.open(OWNER, lambda attempt_id: TxId(int(attempt_id)))
        self.forget()
        self.merge(pa.table({"key": keys, "count": pa.repeat(pa.scalar(1), self.keys)}))
        self.forget()

    def forget(self) -> None:
        """Forget the times."""
        self.state.writes, self.state.upkeep = [], []

    def attempt(self) -> TransactionAttempt:
        """The next transaction's."""
        self.txid += 1
        return TransactionAttempt(TxId(self.txid), AttemptId(self.txid))

    def merge(self, rows: pa.Table) -> None:
        """A transaction of partial counts."""
        self.state.merge(self.attempt(), Partials({"count": self.how}, rows))

    def step(self) -> None:
        """The next transaction."""
        self.merge(self.batches[self.txid % BATCHES])

    def check(self, transactions: int) -> None:
        """Raise ValueError when the table does not hold what was written."""
        table = self.state.read()
        expected = self.keys + transactions * self.batches[0].num_rows
        if (table.num_rows, pc.sum(table["count"]).as_py()) != (self.keys, expected):
            raise ValueError(
                f"{self.path} holds {table.num_rows} keys, {pc.sum(table['count'])} in all, not {expected}"
            )


def compactions_in(table: Path) -> int:
    """How many compactions have been committed to a table, by the transactions in its log that they reached."""
    entries = (path.read_text("utf-8") for path in (table / "_delta_log").glob("*.json"))
    return len({reached for entry in entries for reached in _COMPACTED.findall(entry)})
