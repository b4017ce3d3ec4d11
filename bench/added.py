"""What a sink adds to a transaction: the same transactions without a sink and with one.

They count tuples by word into a Delta table, one in flight. Without a pause each begins once the one before is
committed, while the sink still publishes that one: then both share the machine. With a pause the sink publishes in it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

from bench import machine
from bench.figures import percentile
from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.model.batch import BatchMetadata

AddSink = Callable[[TransactionalTopologyBuilder, str], None]
"""Adds a sink of the stream of component `rows` to a topology, which has a folder for its tables."""


class TimedSpout(MemoryTransactionalSpout):
    """Notes when transactions are planned and committed, by the clock of this process, in seconds.

    It waits for `pause_s` before it plans one.
    """

    def __init__(self, *arguments: Any, pause_s: float = 0, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pause_s, self.planned_s, self.committed_s = pause_s, list[float](), list[float]()

    def plan(self, previous_batch: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Wait, note the time, and plan."""
        Event().wait(self.pause_s)
        self.planned_s.append(time.perf_counter())
        return super().plan(previous_batch, replay=replay)

    def committed(self, batch: Any) -> None:
        """Note the time."""
        self.committed_s.append(time.perf_counter())
        super().committed(batch)

    def transaction_ms(self) -> float:
        """The median time from one commit to the next or, with pauses, from planning to commit. The first ones do not
        count."""
        times_s = [end - start for start, end in pairwise(self.committed_s)]
        if self.pause_s:
            times_s = [end - start for start, end in zip(self.planned_s, self.committed_s, strict=False)]
        return 1e3 * percentile(times_s[len(times_s) // 5 :], 50)


def measure_added(
    tuples: Sequence[tuple[Any, ...]], fields: str, transactions: int, add_sink: AddSink, pause_s: float = 0
) -> dict[str, float]:
    """Count the tuples in so many transactions, without a sink and with one.

    Returns the times of a transaction, and, where the machine counts it, the processors' time of one with a sink.
    """
    without_ms = _count(tuples, fields, transactions, None, pause_s).transaction_ms()
    before = machine.cpu_time()
    with_ms = _count(tuples, fields, transactions, add_sink, pause_s).transaction_ms()
    after = machine.cpu_time()
    cpu = {"cpu_ms": after.own_ms_since(before) / transactions} if before and after else {}
    return {"without_ms": without_ms, "with_ms": with_ms, "added_ms": with_ms - without_ms, **cpu}


def _count(
    tuples: Sequence[tuple[Any, ...]], fields: str, transactions: int, add_sink: AddSink | None, pause_s: float
) -> TimedSpout:
    spout = TimedSpout([list(tuples) * transactions], fields, take=len(tuples), pause_s=pause_s)
    with tempfile.TemporaryDirectory(prefix="added-", ignore_cleanup_errors=True) as folder:
        # A topology of its own: the position of its sink in a shared broker is that of no other store.
        builder = TransactionalTopologyBuilder(Path(folder).name, "rows", spout)
        counts = DeltaMapState(f"{folder}/counts", "word string").count()
        builder.set_committer_bolt("counts", counts).fields_grouping("rows", "word")
        if add_sink is not None:
            add_sink(builder, folder)
        config = {"stop_when_drained": True, "max_spout_pending": 1}
        run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, master="none")
    return spout
