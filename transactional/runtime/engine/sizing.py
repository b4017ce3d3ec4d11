"""Batch sizing: how many records the next batch may have, so that a transaction takes about `target_latency_ms`.

Pure: it receives events and their times; the clock and the spout are the driver's. Exactly once does not depend on it:
a limit bounds new plans, a recorded batch is replayed as it was.

**The latency** is that from a batch's planning (the attempt is recorded) to its transaction commit. It is not used as
measured, since with several transactions in flight it includes waiting for earlier ones: after a step in load a small
batch waits for large ones, appears slow without being so, and a controller that believes it makes ever smaller batches.
Instead, the cost of a batch itself is learned, for the two phases separately, by a `CostEstimate` each:

    processing(n) = p0 + p1 n        for up to k transactions at once, on the same cores: as measured
    commit(n)     = c0 + c1 n        for one at a time

and the waiting time follows. k transactions of the same size circulate through one bottleneck, the commit phase, which
takes one at a time; so each takes

    latency(n) = max(processing(n) + commit(n), k commit(n))

which is set to the target and solved for n. If the fixed part is close to the target, or above it, no batch is small
enough; a controller that follows only the latency then goes down to the minimum, and the throughput with it. So the
records may always add a quarter of the estimated fixed part; if the target is out of reach the batches grow, at most by
a factor of two, as long as records may be cheaper than that. So the target is missed by at least a quarter more than is
unavoidable.

**Steps** are bounded by what was observed: at most eight times as many records as in the measured batch, and at least
an eighth. A batch that was smaller than its limit, because the source had no more, does not raise the limit. The first
transactions, planned before any was committed, are not counted: they include start-up costs.

**Bytes.** Records are counted, since most of the cost depends on them and a source knows their number before it reads.
What it reads also has a size: the limit holds twice the bytes that such a batch had by the last measurement, so that a
partition with large records does not make a batch as slow as the number of records would allow.

Compared by simulation: the cost per record ten times as high or low, commits more expensive or cheaper, the fixed part
higher or lower; noise of 10 %; 60 to 100 seeds. This is within a quarter of the target after 1 to 3 transactions with
one in flight, 4 to 8 with four (medians; 95 % after 10), and stays there. A limit in proportion to target / latency, as
in Flink's buffer debloating, is as fast with one in flight; with three it takes up to 15, and goes down to the minimum
if the fixed part exceeds the target. Spark's PIDRateEstimator for DStreams is as fast, but only knows rates: with three
commits in the queue it settles at one and a half times the target.
"""

from __future__ import annotations

import math
from typing import Final

from transactional.model.batch import BatchLimit, BatchMetadata
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError
from transactional.runtime.engine.cost_estimate import CostEstimate
from transactional.runtime.engine.history.timeline import Flight
from transactional.topology.topology import Topology

FIRST_RECORDS: Final = 1_000
"""The limit before anything is measured: large enough to show more than fixed costs."""
STEP_MAX: Final = 8
"""The maximum factor between a batch's limit and a measured batch, upwards and downwards."""
STEP_MAX_OUT_OF_REACH: Final = 2
RECORDS_PART_MIN: Final = 0.25
"""The share of its fixed cost that the records of a batch may add, whatever the target."""
_RECORDS_MIN: Final = 100
"""Smallest limit, unless the spout's own limit is smaller."""
_RECORDS_MAX: Final = 10**12
"""The limit if a record appears to cost nothing."""


class BatchSizer:
    """Chooses each batch's limit from the cost of earlier transactions.

    `records_max` is the spout's own limit, None if it has none. `in_flight` is the number of transactions in flight
    at once.
    """

    def __init__(self, target_ms: int, *, in_flight: int, records_max: int | None = None) -> None:
        self.target_ms, self.in_flight = target_ms, in_flight
        self.records_max = _RECORDS_MAX if records_max is None else records_max
        self.records_min = min(_RECORDS_MIN, self.records_max)
        self.processing, self.commit = CostEstimate(), CostEstimate()
        self._record_bytes: int | None = None
        first = min(max(FIRST_RECORDS, self.records_min), self.records_max)
        self.limit = BatchLimit(first, None, "nothing is measured yet")

    def learn(self, flight: Flight, batch: BatchMetadata) -> None:
        """Learn from a committed transaction, which may change `limit`.

        The first ones, planned before any was committed, are not counted.
        """
        if not flight.commits_before:
            return
        size, limit = size_of(batch), (flight.limit or self.limit).records
        self.processing.learn(size, flight.processing_ms, limit=limit)
        self.commit.learn(size, flight.commit_ms, limit=limit)
        read_bytes = sum(digest.bytes for digest in batch.digests.values())
        if size and read_bytes:
            self._record_bytes = math.ceil(read_bytes / size)
        records, reason = self._bound(self.target_records(), limit, size)
        self.limit = BatchLimit(records, self._record_bytes, f"{self._cost()}{reason}")

    def target_records(self) -> float:
        """Return the number of records for which the model expects the target latency."""
        in_turn = self.commit.times(self.in_flight)
        return min(_records_within(self.target_ms, cost) for cost in (self.processing.plus(self.commit), in_turn))

    def _bound(self, records: float, limit: int, size: int) -> tuple[int, str]:
        """Return the limit within all bounds, and the reason if a bound applies."""
        step = STEP_MAX if _is_in_reach(self.target_ms, self.processing.plus(self.commit)) else STEP_MAX_OUT_OF_REACH
        if records > (most := step * size) and 2 * size >= limit:
            records, reason = most, f", but at most {step} times the last batch"
        elif 2 * size < limit and records > (most := max(limit, self.limit.records)):
            records, reason = most, f", and the last batch had only {size}"
        elif records < size / STEP_MAX:
            records, reason = size / STEP_MAX, f", but at least 1/{STEP_MAX} of the last batch"
        else:
            reason = ""
        if records > self.records_max:
            return self.records_max, ", and the spout takes no more"
        if records < self.records_min:
            return self.records_min, f", but at least {self.records_min} records"
        return int(records), reason

    def _cost(self) -> str:
        """Describe the model: the expected cost of a transaction, and the reason why it is not larger."""
        cost, text = self.processing.plus(self.commit), ""
        in_turn, records = self.commit.times(self.in_flight), self.target_records()
        if self.in_flight > 1 and in_turn.expected_ms(records) > cost.expected_ms(records):
            cost, text = in_turn, f"{self.in_flight} commits in turn take "
        text += f"{cost.fixed_ms:.0f} ms + {1000 * cost.record_ms:.3g} µs a record"
        return text if _is_in_reach(self.target_ms, cost) else f"{text}, too much for {self.target_ms} ms"


def make_sizer(topology: Topology, config: TopologyConfig) -> BatchSizer | None:
    """Return the batch sizer, or None without a target latency. Raises `ConfigError` for a spout whose batches can't be
    limited."""
    if config.target_latency_ms is None:
        return None
    spout = topology.spout
    if not spout.parts.planning.can_limit_batches:
        raise ConfigError(
            f"target_latency_ms is set, but the batches of spout {topology.spout_id!r} can't be limited: give "
            f"{type(spout).__name__} can_limit_batches and limit_batches, or remove the target"
        )
    return BatchSizer(
        config.target_latency_ms,
        in_flight=config.max_spout_pending,
        records_max=spout.parts.planning.batch_records_max,
    )


def size_of(batch: BatchMetadata) -> int:
    """Return the size of a batch as limits count it: offsets of a log, or records if offsets only count steps."""
    return max(batch.offset_count, batch.record_count or 0)


def _is_in_reach(target_ms: int, cost: CostEstimate) -> bool:
    return (1 + RECORDS_PART_MIN) * cost.fixed_ms <= target_ms


def _records_within(target_ms: int, cost: CostEstimate) -> float:
    """Return how many records fit the target, or, if it is out of reach, how many fit their share of the fixed cost.

    If the target is out of reach, any size seems right whose records are too few to be noticed beside the fixed cost.
    Records are then assumed to be as cheap as plausible (by a standard deviation), so that batches grow until the cost
    of a record can be measured.
    """
    if _is_in_reach(target_ms, cost):
        available_ms, record_ms = target_ms - cost.fixed_ms, cost.record_ms
    else:
        available_ms, record_ms = RECORDS_PART_MIN * cost.fixed_ms, cost.record_ms - math.sqrt(cost.variance[1])
    return min(available_ms / record_ms, _RECORDS_MAX) if record_ms > 0 else float(_RECORDS_MAX)
