"""The parts of the benchmark that share one broker and one Spark: who works against whom, on what, for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import monotonic

from bench import works
from bench.contest import Contest, Plan
from bench.ours import Ours
from bench.peers import ExpertRecipe, SparkMerge
from bench.raw import Raw
from bench.rounds import Stage, System
from bench.targets import KEYS
from bench.windows import ByMinute, StructuredStreaming, Windows
from bench.workload import Workload, departures, timed, zipf
from bench.works import Work

MANY_KEYS = "keys-1m"
AUTO = "ours-auto"
"""Ours with the option `processing = "auto"`, three transactions in flight."""
PARTITIONS = (4, 128)
"""Of a topic that a product uses, and of one that a company shares."""
BY_MINUTE, PER_MINUTE = "by-minute", 12_000
"""200 messages a second: the smallest batches close windows every twelfth time, the largest ones 17 minutes at once."""
WARM_MESSAGES, WARM_BATCHES = 1_000, 10
"""Batches of this size, and so many at a time, while everything gets warm."""
FLIGHTS_FILL = 16_776
"""What is left of the flights is 16 batches of 20,000."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Plans by part; `vocabulary` is that of the table with many keys.

    `warm_s` is how long each system works before anything is measured, in seconds.
    """

    pairs: Sequence[Plan]
    raw: Sequence[Plan]
    many_keys: Sequence[Plan]
    works: Plan
    far: Plan
    flights: Plan
    bolts: Sequence[Plan]
    windows: Sequence[Plan]
    partitions: Plan
    vocabulary: int
    warm_s: float = 20
    fill: int = 200_000

    def messages(self) -> int:
        """The longest way through the topic of words, without the filling."""
        plans = (*self.pairs, *self.raw, *self.bolts, *self.windows, self.works, self.far)
        return max(plan.rounds * plan.messages for plan in plans)


WHOLE = Scale(
    # Long enough that the start of a run, a tenth of a second of ours, does not count.
    pairs=[Plan(1_000, 3, 40), Plan(20_000, 3, 20), Plan(200_000, 3, 16)],
    raw=[Plan(200_000, 5, 8), Plan(1_000_000, 3, 3)],
    many_keys=[Plan(20_000, 3, 8), Plan(200_000, 2, 4)],
    works=Plan(20_000, 2, 8),
    far=Plan(20_000, 3, 24),
    flights=Plan(20_000, 2, 8),
    bolts=[Plan(20_000, 3, 8), Plan(200_000, 3, 3)],
    windows=[Plan(1_000, 3, 40), Plan(20_000, 3, 20), Plan(200_000, 3, 10)],
    partitions=Plan(20_000, 5, 10),
    vocabulary=1_000_000,
)
SHORT = Scale(
    pairs=[Plan(1_000, 2, 6), Plan(20_000, 2, 6)],
    raw=[Plan(200_000, 2, 3)],
    many_keys=[Plan(20_000, 2, 6)],
    works=Plan(20_000, 2, 5),
    far=Plan(20_000, 2, 5),
    flights=Plan(20_000, 2, 8),
    bolts=[Plan(20_000, 2, 5)],
    windows=[Plan(1_000, 2, 14), Plan(20_000, 2, 6)],
    partitions=Plan(20_000, 2, 5),
    vocabulary=100_000,
    warm_s=5,
    fill=40_000,
)


@dataclass(frozen=True, slots=True)
class Topics:
    """The contents of all topics; each contest has topics of its own with these contents."""

    by_name: Mapping[str, Workload]
    bootstrap: str
    numbers: Iterator[int]

    @classmethod
    def make(cls, scale: Scale, bootstrap: str, parts: Sequence[str]) -> Topics:
        """Draw the contents that the parts need."""
        workloads = [zipf("words", scale.messages(), 8_000, scale.fill)]
        if "works" in parts:
            many = max(plan.rounds * plan.messages for plan in scale.many_keys)
            workloads += [zipf("many-words", many, scale.vocabulary, scale.vocabulary)]
            workloads += [departures("flights", FLIGHTS_FILL)]
        if "windows" in parts:
            most = max(plan.rounds * plan.messages for plan in scale.windows)
            workloads += [timed(zipf("words", most, 8_000, scale.fill), BY_MINUTE, PER_MINUTE)]
        if "partitions" in parts:
            words = zipf("words", scale.partitions.rounds * scale.partitions.messages, 8_000, scale.fill)
            workloads += [replace(words, topic=_over(number), partitions=number) for number in PARTITIONS]
        return cls({workload.topic: workload for workload in workloads}, bootstrap, count(1))

    def create(self, name: str) -> Workload:
        """A new topic with the contents of this name, empty so far. Raises `OperatingError` if the broker refuses."""
        return self.by_name[name].copy(self.bootstrap, str(next(self.numbers)))

    def append(self, workload: Workload, start: int, end: int) -> None:
        """Write a part of a workload into its topic. Raises `OperatingError` if the broker does not take it."""
        workload.append(self.bootstrap, start, end)


def warm_up(stage: Stage, topics: Topics, scale: Scale) -> None:
    """Let ours and the peers work for the same time, on tables of their own: for minutes a JVM compiles what it runs.

    What runs for days is measured, not how it starts.
    """
    warm(_pairs(stage, works.per_key(topics.create("words"), "warm-up"), "warm-up"), topics, scale)


def warm(systems: Sequence[System], topics: Topics, scale: Scale) -> None:
    """Let all of them work in turns for a while, on one topic."""
    workload, done = systems[0].work.workload, 0
    deadline_s = monotonic() + scale.warm_s * len(systems)
    while monotonic() < deadline_s and done < workload.messages:
        start, done = done, min(done + WARM_BATCHES * WARM_MESSAGES, workload.messages)
        topics.append(workload, start, done)
        for system in systems:
            system.run(workload.until(done), WARM_MESSAGES)


def pairs(contest: Contest, topics: Topics, scale: Scale) -> None:
    """A count per key: ours with one and with three in flight, each beside one of the peers."""
    for plan in scale.pairs:
        work = works.per_key(topics.create("words"), KEYS)
        contest.hold(work, _pairs(contest.stage, work, f"pairs-{plan.batch_messages}"), plan)


def raw(contest: Contest, topics: Topics, scale: Scale) -> None:
    """The same with large batches against bare consumers."""
    for plan in scale.raw:
        work = works.per_key(topics.create("words"), KEYS)
        label = f"raw-{plan.batch_messages}"
        contest.hold(work, [Ours(contest.stage, work, label, in_flight=3), Raw(contest.stage, work)], plan)


def other_works(contest: Contest, topics: Topics, scale: Scale) -> None:
    """Other works; a table of many keys, where a transaction commit takes long, with one to four in flight."""
    stage = contest.stage
    for work, plan in (
        (works.global_count(topics.create("words")), scale.works),
        (works.carriers(topics.create("flights")), scale.flights),
    ):
        contest.hold(work, _pairs(stage, work, "works"), plan)
    for work, plan in (
        (works.words(topics.create("words")), scale.works),
        (works.far_away(topics.create("words")), scale.far),
    ):
        contest.hold(work, [Ours(stage, work, "works", in_flight=number) for number in (1, 3)], plan)
    for plan in scale.many_keys:
        many = works.per_key(topics.create("many-words"), MANY_KEYS)
        label = f"many-{plan.batch_messages}"
        between = [Ours(stage, many, label, in_flight=n) for n in (2, 4) if plan is scale.many_keys[0]]
        log = Ours(stage, replace(many, state=works.LogMapState), label, in_flight=3, name="ours-3-log")
        contest.hold(many, [*_pairs(stage, many, label), log, *between], plan)


def bolts(contest: Contest, topics: Topics, scale: Scale) -> None:
    """The same bolt written in the three ways there are."""
    stage = contest.stage
    ways = {"tuples": works.capitals_by_tuple, "arrow": works.capitals_by_arrow}
    for plan in scale.bolts:
        work = works.capitals(topics.create("words"))
        label = str(plan.batch_messages)
        named = {**ways, "dataframe": works.capitals_by_dataframe}
        systems = [Ours(stage, work, label, in_flight=1, name=f"ours-{n}", bolt=bolt) for n, bolt in named.items()]
        contest.hold(work, systems, plan)


def windows(contest: Contest, topics: Topics, scale: Scale) -> None:
    """A count by key and minute against Structured Streaming's own windows."""
    title = "count by key and minute"
    warm(_windowed(contest.stage, ByMinute("warm-windows", title, topics.create(BY_MINUTE)), "warm-up"), topics, scale)
    for plan in scale.windows:
        work = ByMinute("windows", title, topics.create(BY_MINUTE), batch_messages=plan.batch_messages)
        contest.hold(work, _windowed(contest.stage, work, str(plan.batch_messages)), plan)


def partitions(contest: Contest, topics: Topics, scale: Scale) -> None:
    """The same messages in few partitions and in many."""
    of_topics = {name: works.per_key(topics.create(name), "partitions") for name in map(_over, PARTITIONS)}
    systems = [Ours(contest.stage, work, "20000", in_flight=1, name=f"ours-{name}") for name, work in of_topics.items()]
    contest.hold(systems[0].work, systems, scale.partitions)


Part = Callable[[Contest, Topics, Scale], None]
PARTS: Mapping[str, tuple[Part, float]] = {
    "pairs": (pairs, 8),
    "raw": (raw, 2),
    "works": (other_works, 5),
    "bolts": (bolts, 1),
    "windows": (windows, 6),
    "partitions": (partitions, 3),
}
"""Each part, and after how many minutes no further round of it is started."""


def _over(partitions: int) -> str:
    return f"over-{partitions}"


def _pairs(stage: Stage, work: Work, label: str) -> list[System]:
    """By turns, so that each peer has one of ours beside it."""
    one, three = (Ours(stage, work, label, in_flight=number) for number in (1, 3))
    auto = Ours(stage, work, label, in_flight=3, name=AUTO, processing="auto")
    return [one, SparkMerge(stage, work, label), three, ExpertRecipe(stage, work, label), auto]


def _windowed(stage: Stage, work: ByMinute, label: str) -> list[System]:
    """The peer between both of ours."""
    one, three = (Windows(stage, work, label, in_flight=number) for number in (1, 3))
    auto = Windows(stage, work, label, in_flight=3, name=AUTO, processing="auto")
    return [one, StructuredStreaming(stage, work, label), three, auto]
