"""What a run was like, from two lists: how far the load was written when, and how far it was committed when. Pure.

Positions are numbers of messages per Kafka partition. Seconds count from the beginning of the load.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile

from tests.experiment.schedule import Kind, Step

Positions = Sequence[int]
BEFORE_S = 10.0
"""The lag before a kill is the highest one in so many seconds before it: between two commits it goes up and down."""
STAYS_S = 10.0
"""It is back at that once it does not exceed it for so long: a dead machine may be noticed only after seconds."""


@dataclass(frozen=True, slots=True)
class Reached:
    """At `at_s` each partition had reached its position."""

    at_s: float
    positions: Positions

    @property
    def messages(self) -> int:
        """How many messages that is."""
        return sum(self.positions)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from when the messages of one second were due to when they were committed; None: never."""

    at_s: int
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Recovery:
    """After a kill: seconds until the lag was back at what it was before for the first time, and until it stayed there:
    a worker that comes back may hold it up once more. None: not before the next kill."""

    step: Step
    lag_before: int
    first_s: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One system's run: what was due when, what was committed when, in order of time, and when something failed."""

    name: str
    due: Sequence[Reached]
    committed: Sequence[Reached]
    failed_at_s: Sequence[float]

    def lag(self, step_s: float = 0.5) -> list[tuple[float, int]]:
        """Messages due and not committed, every `step_s` seconds while there was a load."""
        last = self.due[-1].at_s
        return [(at, self._messages(self.due, at) - self._messages(self.committed, at)) for at in _grid(last, step_s)]

    def throughput(self, step_s: float = 5.0) -> list[tuple[float, float]]:
        """Messages committed a second, in windows of `step_s` seconds, given by their ends."""
        ends = _grid(self.due[-1].at_s, step_s)[1:]
        taken = [self._messages(self.committed, end) - self._messages(self.committed, end - step_s) for end in ends]
        return [(end, messages / step_s) for end, messages in zip(ends, taken, strict=True)]

    def latencies(self) -> list[Latency]:
        """By the second in which messages were due; each piece of the load weighs as many messages as it has."""
        found: dict[int, list[tuple[float | None, int]]] = {}
        for before, after in zip(self.due, self.due[1:], strict=False):
            for partition, (start, end) in enumerate(zip(before.positions, after.positions, strict=True)):
                if end > start:
                    took_s = self._committed_at(partition, end)
                    weighed = (None if took_s is None else took_s - after.at_s, end - start)
                    found.setdefault(int(after.at_s), []).append(weighed)
        return [Latency(at, weighted(pieces, 0.5), weighted(pieces, 0.99)) for at, pieces in sorted(found.items())]

    def percentile(self, share: float) -> float | None:
        """The latency, in seconds, that `share` of all seconds' p50 do not exceed; None: they were never committed."""
        return weighted([(each.p50_s, 1) for each in self.latencies()], share)

    def recoveries(self, steps: Sequence[Step]) -> list[Recovery]:
        """One for each kill."""
        kills = [step for step in steps if step.kind is not Kind.BACK]
        lags = self.lag()
        ends = [*(kill.at_s for kill in kills[1:]), lags[-1][0]]
        return [_recovery(kill, until, lags) for kill, until in zip(kills, ends, strict=True)]

    def _committed_at(self, partition: int, position: int) -> float | None:
        index = bisect_right(self.committed, position - 1, key=lambda each: each.positions[partition])
        return self.committed[index].at_s if index < len(self.committed) else None

    @staticmethod
    def _messages(reached: Sequence[Reached], at_s: float) -> int:
        index = bisect_right(reached, at_s, key=lambda each: each.at_s)
        return reached[index - 1].messages if index else 0


def weighted(pieces: Sequence[tuple[float | None, int]], share: float) -> float | None:
    """The smallest figure that `share` of the weight does not exceed; None, the largest of all, stands for never."""
    ordered = sorted(pieces, key=lambda piece: float("inf") if piece[0] is None else piece[0])
    wanted, weight = share * sum(weight for _, weight in ordered), 0
    for figure, each in ordered:
        weight += each
        if weight >= wanted:
            return figure
    return None


def _recovery(kill: Step, until_s: float, lags: Sequence[tuple[float, int]]) -> Recovery:
    before = max((lag for at, lag in lags if kill.at_s - BEFORE_S <= at <= kill.at_s), default=0)
    after = [(at, lag) for at, lag in lags if kill.at_s < at < until_s]
    back_since = kill.at_s
    for at, lag in after:
        back_since = float("inf") if lag > before else min(back_since, at)
        if at - back_since >= STAYS_S:
            break
    above = dropwhile(lambda each: each[1] <= before, after) if back_since > kill.at_s else iter([(kill.at_s, 0)])
    first = next((at for at, lag in above if lag <= before), None)
    return Recovery(
        kill,
        before,
        None if first is None else first - kill.at_s,
        back_since - kill.at_s if back_since < until_s else None,
    )


def _grid(last: float, step_s: float) -> list[float]:
    return [number * step_s for number in range(int(last / step_s) + 1)]
