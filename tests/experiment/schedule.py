"""Who is killed when: the same plan for every system. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """What happens to the cluster."""

    WORKER = "worker killed"
    LEADER = "worker and leader killed"
    GONE = "worker killed for good"
    BACK = "worker back"


@dataclass(frozen=True, slots=True)
class Step:
    """At `at_s` seconds after the load began, `kind` happens to worker number `worker`."""

    at_s: float
    kind: Kind
    worker: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`kills` kills, one every `every_s` seconds; the worker is back after `away_s`; the leader dies at each third.

    Then the workers go for good, one every `every_s`, until one is left, which works for `every_s` seconds more.
    """

    workers: int = 4
    kills: int = 10
    every_s: float = 60.0
    away_s: float = 20.0
    leader_at_each: int = 3

    @property
    def lasts_s(self) -> float:
        """How long the load lasts: the kills, the workers that go for good, and a pause after the last one."""
        return self.every_s * (self.kills + self.workers)

    def steps(self) -> list[Step]:
        """All of them, in order."""
        return sorted([*self._returning(), *self._for_good()], key=lambda step: step.at_s)

    def _returning(self) -> Iterator[Step]:
        for number in range(1, self.kills + 1):
            worker, at_s = (number - 1) % self.workers, self.every_s * number
            yield Step(at_s, Kind.WORKER if number % self.leader_at_each else Kind.LEADER, worker)
            yield Step(at_s + self.away_s, Kind.BACK, worker)

    def _for_good(self) -> Iterator[Step]:
        for number in range(1, self.workers):
            yield Step(self.every_s * (self.kills + number), Kind.GONE, number)
