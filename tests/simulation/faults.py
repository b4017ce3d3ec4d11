"""What goes wrong, and how often: each seed draws its own rates (a swarm), most of them 0. And what was reached."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

RATES_MAX = {
    "planning fails": 0.4,
    "processing fails": 0.2,
    "processing hangs": 0.1,
    "processing is slow": 0.2,
    "a committer fails": 0.2,
    "a commit phase hangs": 0.05,
    "a commit phase is slow": 0.2,
    "what was processed is lost": 0.1,
    "the process crashes": 0.02,
    "the process stands still": 0.03,
    "the driver's thread stands still": 0.03,
    "a process that fences stands still": 0.3,
    "a process that writes stands still": 0.1,
    "a store write is lost": 0.02,
    "a store write is done, its answer is lost": 0.02,
    "a store write is made twice": 0.2,
    "the store is down": 0.02,
    "an event comes twice": 0.5,
    "the clock jumps": 0.02,
    "a second coordinator is started": 0.02,
    "a committer joins": 0.05,
    "others optimize a table between the check and the write": 0.2,
    "a reader reads through a state that is writing": 0.3,
    "tuples are poison": 0.02,
    "a bolt fails a message": 0.3,
    "a task is run twice": 0.3,
    "a staged file is lost": 0.1,
    "an operator deactivates": 0.03,
    "an operator drains": 0.02,
    "an operator kills": 0.02,
    "an operator stops": 0.02,
    "a partition is added": 0.03,
    "a partition does not answer": 0.05,
    "old attempts are trimmed": 0.5,
    # A transactional source does not lose anything, so these are for opaque ones.
    "retention eats a log": 0.05,
    "a partition is made anew": 0.03,
}
"""The highest rate of each fault: per task, per effect, per write, per event, or per look around, as its name says."""

LOSSES = ("retention eats a log", "a partition is made anew")

CONSEQUENCES = (
    "a commit phase is done in half of the tables",
    "a table refuses an old attempt",
    "a table has moved between reading and writing",
    "a write is refused for others' OPTIMIZE, and checked again",
    "a commit phase goes on after its driver has ended",
    "the store refuses an old lease",
    "the store is down until the lease ends",
    "a lease is refused",
    "a replay is another batch",
    "a replay is empty",
    "a dead attempt's rows go back",
    "a replay restores what a dead attempt has deleted",
    "a stateful bolt reads what a dead attempt has changed",
    "a transactional table skips a replay",
    "a restart replays what was recorded",
    "an attempt times out",
    "progress keeps a slow attempt alive",
    "a commit phase is stuck",
    "a committer joins late",
    "a tuple is set aside",
    "a table is compacted between transactions",
    "a transaction fails too often",
    "what is needed is away for too long",
    "a process stops when the source is drained",
    "an idle source is asked again",
    "a process stops when asked to",
    "a restart finds what was wished",
    "new values are computed where a dead attempt has written",
    "a key comes again that has expired",
    "rows that have expired are removed",
    "a replay passes on again what expires",
    "staged files of a dead attempt are replaced",
    "a file that was reported is not there",
    "a staged file that nobody commits is deleted",
    "a compaction that was written in the background is committed",
    "a compaction that was written in the background is dropped",
    "a message that has failed comes again alone",
    "a message is given again",
    "messages are lost, and that is told",
    "a topology was draining",
    "a topology was killed",
)


class Wrong(BaseException):
    """A promise is broken. Not an `Exception`: the code under test may retry those, and this has to come through."""


def demand(holds: bool, text: str) -> None:  # noqa: FBT001 - reads like an assert
    """Raise `Wrong` when something does not hold."""
    if not holds:
        raise Wrong(text)


@dataclass(slots=True)
class Faults:
    """The faults of one seed. `strikes` draws, and counts what struck."""

    random: Random
    reached: Counter[str]
    drawn: dict[str, float] = field(default_factory=dict)
    are_over: bool = False

    def draw(self, *, loses: bool) -> None:
        """Choose which faults this seed has, and how often. `loses`: the source may lose records."""
        for name, most in RATES_MAX.items():
            chosen = self.random.random() < 0.4
            rate = most * self.random.random()
            self.drawn[name] = rate if chosen and (loses or name not in LOSSES) else 0.0

    def stop(self) -> None:
        """From now on nothing goes wrong."""
        self.are_over = True

    def strikes(self, name: str) -> bool:
        """Whether this fault happens now."""
        rate = 0.0 if self.are_over else self.drawn.get(name, 0.0)
        if not rate or self.random.random() >= rate:
            return False
        self.reached[name] += 1
        return True
