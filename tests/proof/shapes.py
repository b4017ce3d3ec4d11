"""The topologies that crash, and what a plain count of their input puts into their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from examples.transactional_words import Bucketize, KeyedCountUpdater
from spouts import MemoryTransactionalSpout
from state import DeadLetterTable, DeltaMapState
from state.delta.segments.log_layout import LogLayout
from tests.proof.effects import Effects, Mirror, MirroringSpout, OpaqueMirroringSpout
from transactional import KeyValueState, StatefulBolt, StateKind, Topology, TransactionalTopologyBuilder, Tuple
from transactional.model.aggregates import Count as Counted
from transactional.model.aggregates import Max
from transactional.trident import Count, TridentTopology, tumbling

Word = str | None
Contents = Mapping[str, Mapping[Any, Any]]
"""By table: key → value. Letters have no key that a plain count knows: they are counted, by what they hold."""
Batches = Sequence[tuple[datetime, Sequence[Word]]]
"""The words of each transaction, and its time."""

WORDS: Sequence[Sequence[Word]] = (
    ("cat", "dog", "cat", "cat", "bird", None, "dog", "cat"),
    ("cat", "fish", "12", "dog", "cat", "bird"),
)
TAKE, OTHER_TAKE = 2, 3
BUCKET_SIZE = 2
PAIRS = 40
NOON, WINDOW = datetime(2020, 5, 1, 12, tzinfo=UTC), timedelta(seconds=2)
AFTER = timedelta(seconds=2)
"""When keys expire."""
PROPERTIES = {"delta.checkpointInterval": "4"}
KEPT_FOR_NO_TIME = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
"""What nobody can commit any more is deleted as soon as it was noted."""
LAYOUTS = {
    "log": LogLayout(compact_after=1, staged_bytes=None),
    "staged": LogLayout(compact_after=2, staged_bytes=0),
}
"""In the log layout, which is compacted all the time; and with all that tasks aggregate, or write in steps that are
jobs,
in files of their own."""


@dataclass(frozen=True)
class Setting:
    """How a shape is set up: with which guarantees, engine and window."""

    shape: str
    is_opaque: bool
    pending: int
    layout: str = "merge"

    @property
    def kind(self) -> StateKind:
        """Behind a transactional spout transactional, but where a replay lacks what was set aside meanwhile."""
        return StateKind.OPAQUE if self.is_opaque or self.shape == "letters" else StateKind.TRANSACTIONAL

    def __str__(self) -> str:
        spout = "opaque" if self.is_opaque else "transactional"
        return f"{self.shape}, {spout}, {self.pending} in flight, delta-rs, {self.layout}"


@dataclass(frozen=True)
class Shape:
    """How a topology is made, and what its tables should hold after some rows."""

    add_bolts: Callable[[TransactionalTopologyBuilder, Callable[..., DeltaMapState], Path], None]
    expected: Callable[[Sequence[Word]], Contents] = lambda words: {}
    by_times: Callable[[Batches], Contents] | None = None
    """The same, where times of transactions decide."""
    met: Callable[[Contents], Contents] = lambda tables: tables
    """What tables hold together, where the rows alone do not say which of them holds what."""


def build(setting: Setting, folder: Path, effects: Effects, *, take: int) -> Topology:
    """The topology over tables in a folder. A memory spout takes so many rows of each partition."""
    is_timed = setting.shape in TIMED
    rows = [[TIMED[setting.shape](word) if is_timed else (word,) for word in words] for words in rows_of(setting)]
    kind: type[MirroringSpout | OpaqueMirroringSpout] = OpaqueMirroringSpout if setting.is_opaque else MirroringSpout
    spout = kind(rows, fields="word string, at timestamp" if is_timed else "word string", take=take)
    assert isinstance(spout, MemoryTransactionalSpout)
    spout.mirror = Mirror(folder / "mirror.json", effects)

    def state(name: str, key: str | tuple[str, ...], values: str = "", **goes: Any) -> DeltaMapState:
        layout = LAYOUTS.get(setting.layout, setting.layout)
        properties = {**PROPERTIES, **(KEPT_FOR_NO_TIME if setting.layout == "staged" else {})}
        options: dict[str, Any] = {"layout": layout, "properties": properties}
        return DeltaMapState(folder / name, key, values, kind=setting.kind, **goes, **options)

    if setting.shape == "windows":
        return windowed(spout, state)
    builder = TransactionalTopologyBuilder("proof", "words", spout, parallelism=2)
    SHAPES[setting.shape].add_bolts(builder, state, folder)
    return builder.build()


def rows_of(setting: Setting) -> Sequence[Sequence[Word]]:
    """What the spout holds. Only where tuples may be set aside are there some that no bolt can work on."""
    if setting.shape == "letters":
        return WORDS
    if setting.shape in TIMED:
        return [[f"{word}@{number}" for number, word in enumerate([*words, *words])] for words in WORDS]
    return [[word or "none" for word in words] for words in WORDS]


def count(words: Sequence[Word]) -> Contents:
    return {"per-word": Counter(words), "in-all": {(): len(words)} if words else {}}


def add_counts(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """Two tables that know nothing of each other."""
    del folder
    builder.set_committer_bolt("per-word", state("per-word", "word").count()).fields_grouping("words", "word")
    builder.set_committer_bolt("in-all", state("in-all", ()).count()).global_grouping("words")


def pairs(words: Sequence[Word]) -> Contents:
    return {"per-pair": Counter((word, number) for word in words for number in range(PAIRS))}


def paired(row: Tuple) -> list[tuple[str, int]]:
    """So many keys of two columns that Arrow does not group them in their order."""
    return [(row["word"], number) for number in range(PAIRS)]


def add_pairs(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """One table whose key has two columns."""
    del folder
    builder.set_bolt("pairs", paired, 2, output="word string, number long").shuffle_grouping("words")
    counts = state("per-pair", ("word", "number")).count()
    builder.set_committer_bolt("per-pair", counts, 2).fields_grouping("pairs", "word", "number")


def buckets(words: Sequence[Word]) -> Contents:
    counts = Counter(words)
    sizes = Counter(count // BUCKET_SIZE for count in counts.values())
    # A bucket that all words have left stays, with no words; it can be told from the counts only that it may be there.
    return {"per-word": counts, "per-bucket": sizes}


def add_buckets(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """Storm's TransactionalWords: a bolt behind a committer, in front of another committer."""
    del folder
    per_word = state("per-word", "word string", "count long")
    builder.set_committer_bolt("per-word", KeyedCountUpdater(), 2, state=per_word).fields_grouping("words", "word")
    builder.set_bolt("bucketize", Bucketize(BUCKET_SIZE)).shuffle_grouping("per-word")
    per_bucket = state("per-bucket", "bucket long").sum("words", "count")
    builder.set_committer_bolt("per-bucket", per_bucket).fields_grouping("bucketize", "bucket")


def spell(row: Tuple) -> tuple[str]:
    """A bolt that some tuples are nothing for."""
    if not row["word"].isalpha():
        raise ValueError("no word")
    return (str(row["word"]),)


def letters(words: Sequence[Word]) -> Contents:
    good = [word for word in words if word is not None and word.isalpha()]
    return {"per-word": Counter(good), "letters": Counter(word for word in words if word not in good)}


def add_letters(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """Tuples that are set aside."""
    builder.set_bolt("spell", spell, 2, output="word string").shuffle_grouping("words")
    builder.set_committer_bolt("per-word", state("per-word", "word").count()).fields_grouping("spell", "word")
    builder.set_dead_letters(DeadLetterTable(folder / "letters", properties=PROPERTIES))


def left_of_threes(words: Sequence[Word]) -> Contents:
    counts = Counter(words)
    left = {word: count % 3 for word, count in counts.items() if count % 3}
    return {"per-word": left, "highest": {word: min(count, 3) for word, count in counts.items()}}


class Counting(StatefulBolt):
    """Counts words up to three, and emits each with its new count; of three nothing is left."""

    state = "word string -> count long"
    output = "word string, count long"

    def init_state(self, state: KeyValueState) -> None:
        self.counts = state

    def execute(self, tuple: Tuple) -> None:
        count = self.counts.get(tuple.word, 0) + 1
        if count == 3:
            self.counts.delete(tuple.word)
        else:
            self.counts.put(tuple.word, count)
        self.collector.emit(tuple.word, count)


def add_stateful(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """A stateful bolt, and a table of the highest count that it has emitted of each word."""
    del folder
    counts = state("per-word", "word string", deletes=True)
    builder.set_stateful_bolt("per-word", Counting(), 2, state=counts).fields_grouping("words", "word")
    builder.set_committer_bolt("highest", state("highest", "word").max("count")).fields_grouping("per-word", "word")


def moved(row: Tuple) -> list[tuple[int, int]]:
    """As `Bucketize`, for what a state's update emits."""
    old, new = (None if count is None else count // BUCKET_SIZE for count in (row["old_count"], row["count"]))
    entered = [(new, 1)] if new != old else []
    return [*entered, *([(old, -1)] if entered and old is not None else [])]


def add_new_values(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """The same as in Storm's TransactionalWords, without a committer of one's own."""
    del folder
    builder.set_committer_bolt("per-word", state("per-word", "word").count()).fields_grouping("words", "word")
    builder.set_bolt("moved", moved, output="bucket long, words long").shuffle_grouping("per-word", stream="old")
    per_bucket = state("per-bucket", "bucket long").sum("words", "count")
    builder.set_committer_bolt("per-bucket", per_bucket).fields_grouping("moved", "bucket")


def timed(word: Word) -> tuple[str, datetime]:
    """A word and its time, which is its place in its partition: no word is late."""
    text, _, second = str(word).partition("@")
    return text, NOON + timedelta(seconds=int(second))


def windowed(spout: MemoryTransactionalSpout, state: Callable[..., Any]) -> Topology:
    """Words of every few seconds: the windows that are open, and those that have closed."""
    topology = TridentTopology("proof", parallelism=2)
    stream = topology.new_stream("words", spout, event_time="at").group_by("word").window(tumbling(WINDOW))
    counts = stream.persistent_aggregate(state("open", None), Count(), name="open")
    counts.closed().persist(state("closed", ("word", "window_start")), name="closed")
    return topology.build()


def windows(words: Sequence[Word]) -> Contents:
    starts = [(text, at - (at - NOON) % WINDOW) for text, at in map(timed, words)]
    return {"windows": Counter(starts)}


def once(tables: Contents) -> Contents:
    """When a window closes depends on the batches; but it is either open or has closed, once, with all of its words."""
    closed = {
        (word, start): count for (word, start, end), count in tables.get("closed", {}).items() if end - start == WINDOW
    }
    still_open = tables.get("open", {})
    assert not closed.keys() & still_open.keys(), "a window has closed and is open"
    assert len(closed) == len(tables.get("closed", {}))
    return {"windows": {**closed, **still_open}}


def seen(word: Word) -> tuple[str, datetime | None]:
    """A word, and when it was seen; of one of them nobody knows."""
    text, at = timed(word)
    return text, None if text == "bird" else at


def add_expiring(builder: TransactionalTopologyBuilder, state: Callable[..., DeltaMapState], folder: Path) -> None:
    """Counts that expire, and a table that adds up what they were after each transaction."""
    del folder
    counts = state("per-word", "word", expires="at", after=AFTER).aggregate(count=Counted(), at=Max("at"))
    builder.set_committer_bolt("per-word", counts).fields_grouping("words", "word")
    builder.set_committer_bolt("in-all", state("in-all", "word").sum("count")).fields_grouping("per-word", "word")


def expiring(batches: Batches) -> Contents:
    """Each word with its count and time, for one transaction after the other."""
    rows, in_all = dict[Any, tuple[int, Any]](), Counter[str]()
    horizon = datetime.min.replace(tzinfo=UTC)
    for time, words in batches:
        horizon = max(horizon, time - AFTER)
        rows = {word: row for word, row in rows.items() if row[1] is None or row[1] > horizon}
        for word, at in map(seen, words):
            count, latest = rows.get(word, (0, None))
            rows[word] = count + 1, max((each for each in (latest, at) if each is not None), default=None)
        for word in {seen(word)[0] for word in words}:
            in_all[word] += rows[word][0]
    left = {(word, count): at for word, (count, at) in rows.items() if at is None or at > horizon}
    return {"per-word": left, "in-all": in_all}


TIMED: Mapping[str, Callable[[Word], tuple[Any, ...]]] = {"windows": timed, "expiring": seen}
"""Shapes whose tuples have times."""
SHAPES = {
    "expiring": Shape(add_expiring, by_times=expiring),
    "windows": Shape(lambda *_: None, windows, met=once),
    "counts": Shape(add_counts, count),
    "pairs": Shape(add_pairs, pairs),
    "words": Shape(add_buckets, buckets),
    "letters": Shape(add_letters, letters),
    "stateful": Shape(add_stateful, left_of_threes),
    "new values": Shape(add_new_values, buckets),
}
