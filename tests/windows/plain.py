"""What windows mean, in plain Python: transaction after transaction, tuple after tuple.

Nothing of the code under test is used here: a window is a pair of numbers, a table is a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

SECOND = 1_000_000
FIRST_US, LAST_US = -670_000 * 86_400 * SECOND, 2_800_000 * 86_400 * SECOND


@dataclass(frozen=True, slots=True)
class Read:
    """A tuple of a committed transaction: its number, key and amount, its time in microseconds, its partition."""

    id: int
    page: str
    clicks: int
    us: int | None
    partition: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed transaction: its tuples, the time at which it was planned, and what was committed by then."""

    txid: int
    known: int
    now_ms: int
    tuples: tuple[Read, ...]
    in_flight: tuple[tuple[int, int], ...] = ()
    """By partition, the times of the transactions in flight, when it was planned, that had something of it."""
    listed: tuple[tuple[int, str], ...] = ()
    """By partition that the source had when it was planned, what there was to read: "something", "nothing", or it was
    "unknown"."""


Counts = tuple[int, int]
"""How many tuples, and the sum of their amounts."""


@dataclass(slots=True)
class Plain:
    """All windows, after any number of transactions. Times are in microseconds."""

    length: int
    every: int
    max_delay: int
    idle_after: int | None
    max_ahead: int
    by_transaction: bool
    gap: int | None = None
    """Of sessions, which have no length."""

    windows: dict[tuple[str, int], Counts] = field(default_factory=dict)
    """Those that are open, by key and start."""
    closed: dict[tuple[str, int], Counts] = field(default_factory=dict)
    of_sessions: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """The times of the tuples of those that are open."""
    became_one: int = 0
    """How often a tuple has joined two of them."""
    late: list[int] = field(default_factory=list)
    thresholds: list[int | None] = field(default_factory=list)
    """By transaction: what is before it is late, and closes."""
    times: list[int] = field(default_factory=list)
    high: list[dict[int, tuple[int, int]]] = field(default_factory=list)
    """By transaction: the highest time of each partition, and the transaction's time when it last had a tuple."""
    has_read: list[set[int]] = field(default_factory=list)
    """By transaction: the partitions of which there was a tuple, whatever its time."""
    listed_since: dict[int, int] = field(default_factory=dict)
    """By partition, the time of the first transaction that has listed it."""
    held: int = 0
    """How often nothing became late because of a partition of which no time is known."""

    def commit_all(self, history: Iterable[Committed]) -> None:
        """One after the other."""
        for transaction in history:
            self.commit(transaction)

    def commit(self, transaction: Committed) -> None:
        """Close what is to be closed, then count."""
        time = max([transaction.now_ms * 1_000, *self.times[-1:]])
        threshold = self._threshold(transaction, time)
        self.times.append(time)
        self.thresholds.append(threshold)
        self.close(threshold)
        for each in transaction.tuples:
            self.count(each, time if self.by_transaction else each.us, threshold)
        self._note(transaction.tuples, time)

    def close(self, threshold: int | None) -> None:
        """Those that end at the threshold, or before."""
        if threshold is not None:
            for page, start in sorted(self.windows):
                if self._end(page, start) <= threshold:
                    assert (page, start) not in self.closed, "a window would close twice"
                    self.closed[page, start] = self.windows.pop((page, start))

    def left_to_close(self, last: Committed) -> list[tuple[str, int]]:
        """The windows that another transaction, without a tuple, would close after the `last` one, even if the clock
        had not moved anything."""
        idle_after, self.idle_after = self.idle_after, None
        listed = tuple((partition, "nothing") for partition, _ in last.listed)
        threshold = self._threshold(Committed(last.txid + 1, last.txid, last.now_ms, (), (), listed), self.times[-1])
        self.idle_after = idle_after
        return [key for key in self.windows if threshold is not None and self._end(*key) <= threshold]

    def _threshold(self, transaction: Committed, time: int) -> int | None:
        if self.by_transaction:
            return time
        known = self.high[transaction.known - 1] if transaction.known else {}
        partitions = []
        for partition, (us, seen) in known.items():
            read = [planned for at, planned in transaction.in_flight if at == partition]
            partitions.append((us, max([seen, *read])))
        looked = self.times[-1] if self.times else time
        awaited, silent = [each for each in partitions if not self._is_idle(looked - each[1])], 0
        if partitions and not awaited and self.idle_after is not None:
            last = max(seen for _, seen in partitions)
            awaited, silent = [each for each in partitions if each[1] == last], looked - last - self.idle_after
        held = [self._holds(*each, transaction, time, looked, known) for each in transaction.listed]
        if any(held):
            self.held += bool(awaited)
            awaited = []
        slowest = [max(us, FIRST_US) - self.max_delay + silent for us, _ in awaited]
        candidates = [us for us in (*self.thresholds[-1:], *([min(slowest)] if slowest else [])) if us is not None]
        return max(candidates, default=None)

    def _holds(
        self,
        partition: int,
        there: str,
        transaction: Committed,
        time: int,
        looked: int,
        known: dict[int, tuple[int, int]],
    ) -> bool:
        """Whether a partition is waited for although nothing is known of it."""
        since = self.listed_since.setdefault(partition, time)
        if partition in known:
            return False
        has_read = transaction.known and partition in self.has_read[transaction.known - 1]
        is_in_flight = any(at == partition for at, _ in transaction.in_flight)
        if not has_read and (is_in_flight or there != "nothing"):
            return True
        return looked - since <= (60 * SECOND if self.idle_after is None else self.idle_after)

    def _is_idle(self, since: int) -> bool:
        return self.idle_after is not None and since > self.idle_after

    def count(self, each: Read, us: int | None, threshold: int | None) -> None:
        """In all windows that are open, or it is late."""
        if us is None or not FIRST_US <= us < LAST_US:
            self.late.append(each.id)
            return
        if self.gap is not None:
            self._join(each, us, threshold, self.gap)
            return
        starts = [start for start in self._starts(us) if threshold is None or start + self.length > threshold]
        if not starts:
            self.late.append(each.id)
        for start in starts:
            count, total = self.windows.get((each.page, start), (0, 0))
            self.windows[each.page, start] = count + 1, total + each.clicks

    @property
    def longest_session(self) -> int:
        """How long the longest one is, open or closed; 0 if there is none."""
        return max((max(times) - min(times) + (self.gap or 0) for times in self.of_sessions.values()), default=0)

    def _end(self, page: str, start: int) -> int:
        return start + self.length if self.gap is None else max(self.of_sessions[page, start]) + self.gap

    def _join(self, each: Read, us: int, threshold: int | None, gap: int) -> None:
        """One more tuple makes one session of all that it touches."""
        if threshold is not None and us + gap <= threshold:
            self.late.append(each.id)
            return
        count, total, times, touched = 1, each.clicks, [us], 0
        for page, start in sorted(self.windows):
            its = self.of_sessions[page, start]
            if page == each.page and min(its) - gap < us < max(its) + gap:
                touched += 1
                more, clicks = self.windows.pop((page, start))
                count, total, times = count + more, total + clicks, times + self.of_sessions.pop((page, start))
        self.became_one += touched > 1
        self.windows[each.page, min(times)] = count, total
        self.of_sessions[each.page, min(times)] = times

    def _starts(self, us: int) -> list[int]:
        first = us - us % self.every
        starts = []
        while first + self.length > us:
            starts.append(first)
            first -= self.every
        return starts

    def _note(self, tuples: tuple[Read, ...], time: int) -> None:
        high = dict(self.high[-1]) if self.high else {}
        for each in tuples:
            if each.us is not None and each.us <= time + self.max_ahead:
                before = high.get(each.partition, (each.us, time))[0]
                high[each.partition] = max(before, each.us), time
        for each in tuples:
            if each.partition in high:
                high[each.partition] = high[each.partition][0], time
        self.high.append(high)
        self.has_read.append({*(self.has_read[-1] if self.has_read else ()), *(each.partition for each in tuples)})
