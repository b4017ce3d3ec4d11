"""Static states: tables of others, looked up at the version that is recorded with the batch (Storm row R12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pytest

from examples.trident_reach import FOLLOWERS, POSTED
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.core.machine.coordinator import Coordinator
from transactional.errors import BatchLost, ConfigError, FailedException, TransactionalError
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.model.facts import StaticVersion
from transactional.model.reading import StaticTable
from transactional.model.schema import Schema
from transactional.queries import QueryClient
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.streams.pipelines.looking_up import LookUpStatic
from transactional.topology.topology import Topology
from transactional.trident import BatchAggregator, Count, Stream, TridentTopology

TABLES: dict[str, list[dict[str, str]]] = {}
"""The versions of each table, which somebody else writes."""
WORD = "word string"
KEY, LABEL = Schema.parse("word string"), Schema.parse("label string")
ROWS = [(word,) for word in "abcabdaccbad"]


@dataclass(frozen=True)
class Versions(StaticTable):
    """A table by its name; tasks have copies of this."""

    name: str
    key: Schema = KEY
    values: Schema = LABEL

    @property
    def table(self) -> str:
        return self.name

    def newest(self) -> StaticVersion:
        return str(len(TABLES[self.name]) - 1)

    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        rows = TABLES[self.name][int(version)]
        return pa.table({"word": list(rows), "label": list(rows.values())})


def somebody_writes() -> None:
    """Another version, in which every value is another one."""
    version = len(TABLES["labels"])
    TABLES["labels"].append({word: f"{word} in {version}" for word in "abc"})


class Flaky:
    """Fails at each word once, when somebody has just written the table."""

    failed: set[str] = set()  # noqa: RUF012

    def __call__(self, row: Any) -> bool:
        if row["word"] not in self.failed:
            self.failed.add(row["word"])
            somebody_writes()
            raise FailedException(row["word"])
        return True


def world(kind: Any, place: str, table: Versions | None = None) -> tuple[TridentTopology, MemoryTable]:
    """Tuples with their label, counted; attempts fail before the look-up, or behind it."""
    TABLES["labels"], Flaky.failed = [], set()
    somebody_writes()
    topology, seen = TridentTopology("words"), MemoryTable("seen")
    stream = topology.new_stream("words", kind([ROWS], "word string", 3))
    labels = topology.static_state(table or Versions("labels"))
    if place == "of new values":
        counts = stream.filter(Flaky()).group_by("word").persistent_aggregate(MemoryMapState(), Count())
        found = counts.new_values().state_query(labels)
    elif place == "before":
        found = stream.filter(Flaky()).state_query(labels)
    else:
        found = stream.state_query(labels).filter(Flaky())
    found.group_by("word", "label").persistent_aggregate(MemoryMapState(table=seen), Count())
    return topology, seen


def run(topology: Topology, store: MemoryCoordinatorStore, attempts: int) -> int:
    """Run until drained, started again after each run that fails; how many did.

    Where a replay is planned again, so are all later batches: they are others then, and read what is the newest.
    """
    pending = 2 if topology.spout.replays_exactly else 1
    config = TopologyConfig(attempts_max=attempts, retry_pause_ms=1, stop_when_drained=True, max_spout_pending=pending)
    for failed in range(100):
        try:
            TopologyDriver(topology, store, LocalExecutor(topology), config).run()
        except TransactionalError:
            continue
        return failed
    raise AssertionError("it never ends")


KINDS = [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout]
PLACES = ["before", "behind", "of new values"]


def history(kind: Any, place: str, attempts: int, table: Versions | None = None) -> tuple[list[Any], list[Any]]:
    """What the table has, and what plain Python makes of the versions that the first attempts have recorded."""
    topology, seen = world(kind, place, table)
    made, store = topology.build(), MemoryCoordinatorStore()
    failed = run(made, store, attempts)
    assert (failed > 0) == (attempts == 1)
    expected: dict[tuple[str, str | None], int] = {}
    for txid in range(1, 5):
        first = store.attempts_at("words", TxId(txid))[-1]
        assert first.batch is not None
        version = int(first.batch.static_versions["labels"])
        words = [word for (word,) in ROWS[3 * (txid - 1) : 3 * txid]]
        for word in words if place != "of new values" else set(words):
            label = TABLES["labels"][version].get(word)
            expected[word, label] = expected.get((word, label), 0) + 1
    rows = MemoryMapState("word string, label string", "count long", table=seen).read().to_pylist()
    return sorted(map(str, (tuple(row.values()) for row in rows))), sorted(
        str((*key, count)) for key, count in expected.items()
    )


@pytest.mark.parametrize("attempts", [1, 99], ids=["started again", "in one run"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS, ids=["transactional", "opaque"])
def test_all_attempts_at_a_batch_read_one_version(kind: Any, place: str, attempts: int) -> None:
    """That of the first attempt, although somebody has written the table since, and also after a restart."""
    found, expected = history(kind, place, attempts)
    assert found == expected
    assert len(TABLES["labels"]) > 3


class Remade(Versions):
    """It was dropped and made again since any batch was planned."""

    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        raise BatchLost(f"{self.name} was made again")


def test_a_run_ends_whose_batch_can_never_be_looked_up_again() -> None:
    """However many attempts it may have: a person has to put the table back."""
    topology, _ = world(MemoryTransactionalSpout, "before", Remade("labels"))
    made, config = topology.build(), TopologyConfig(retry_pause_ms=1, stop_when_drained=True)
    with pytest.raises(BatchLost, match="labels was made again"):
        TopologyDriver(made, MemoryCoordinatorStore(), LocalExecutor(made), config).run()


def reads_the_newest(self: LookUpStatic, keys: pa.Table) -> pa.Table:
    """As Storm does."""
    return self.table.lookup(self.table.newest(), keys)


def forgets_what_was_known(self: Coordinator, current: Any, batch: Any) -> Any:
    """An opaque replay reads the version that is the newest when it is planned."""
    planned: Any = PLANNED(self, current, batch)
    versions = batch.static_versions
    forgotten = [replace(action, batch=replace(action.batch, static_versions=versions)) for action in planned]
    self.recorded[current.attempt.txid] = forgotten[0].batch
    return forgotten


PLANNED = Coordinator._on_planned


@pytest.mark.parametrize(
    ("owner", "name", "wrong", "kind"),
    [
        (LookUpStatic, "read_rows", reads_the_newest, MemoryTransactionalSpout),
        (LookUpStatic, "read_rows", reads_the_newest, OpaqueMemoryTransactionalSpout),
        (Coordinator, "_on_planned", forgets_what_was_known, OpaqueMemoryTransactionalSpout),
    ],
)
def test_wrong_variants_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, wrong: Any, kind: Any
) -> None:
    """The test above would see them."""
    monkeypatch.setattr(owner, name, wrong)
    found, expected = history(kind, "before", 1)
    assert found != expected


@dataclass(frozen=True)
class Twofold(Versions):
    """A key has two rows."""

    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        found = super().lookup(version, keys)
        return pa.concat_tables([found, found])


def test_a_key_with_several_rows_is_refused() -> None:
    """Which one it would be is chance."""
    topology, _ = world(MemoryTransactionalSpout, "before")
    twofold = topology.static_state(Twofold("labels-2"))
    TABLES["labels-2"] = TABLES["labels"]
    stream = topology.new_stream("more", MemoryTransactionalSpout([[("a",)]], "word string", 1))
    stream.state_query(twofold).group_by("label").persistent_aggregate(MemoryMapState(), Count())
    made = topology.build()
    config = TopologyConfig(attempts_max=9, retry_pause_ms=1, stop_when_drained=True)
    with pytest.raises(TransactionalError, match=r"state_query\(labels-2.*a key \(word\) has several rows"):
        TopologyDriver(made, MemoryCoordinatorStore(), LocalExecutor(made), config).run()


MISTAKES: dict[str, tuple[Callable[[TridentTopology, Stream], Any], str]] = {
    "no table": (
        lambda t, s: t.static_state(cast("Any", "users")),
        "takes a table such as StaticDeltaTable",
    ),
    "not declared": (
        lambda t, s: s.state_query(cast("Any", Versions("x"))),
        "or a table that was declared by static_state; got ",
    ),
    "twice": (
        lambda t, s: (t.static_state(Versions("x")), t.static_state(Versions("x", Schema.parse("w long")))),
        "static_state: x is declared twice",
    ),
    "another topology's": (
        lambda t, s: s.state_query(TridentTopology("other").static_state(Versions("x"))),
        "is one of topology 'other', not of topology 'words'",
    ),
    "before": (
        lambda t, s: s.state_query(t.static_state(Versions("x")), when="before"),
        "no transaction changes a static state, so there is no 'before'",
    ),
    "another type": (
        lambda t, s: s.state_query(t.static_state(Versions("x", Schema.parse("word long")))),
        "field 'word' is a string, and the key 'word' of state 'x' is a long",
    ),
    "a field that is there": (
        lambda t, s: s.rename(label="word").state_query(t.static_state(Versions("x")), on="label"),
        "the stream has a field 'label' already",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_reported_at_its_line(name: str) -> None:
    """One line each."""
    mistake, told = MISTAKES[name]
    topology = TridentTopology("words")
    stream = topology.new_stream("words", MemoryTransactionalSpout([ROWS], "word string", 3))
    with pytest.raises(ConfigError, match=told):
        mistake(topology, stream)


def test_describe_shows_it() -> None:
    """In the processing phase: it waits for no state."""
    topology, _ = world(MemoryTransactionalSpout, "before")
    made = topology.build()
    [bolt] = [component for component in made.components if not component.is_committer]
    assert "state_query(labels, on=(word), static)" in bolt.bolt.steps_shown  # type: ignore[union-attr]
    assert not bolt.reads


def followers() -> TridentTopology:
    """Storm's reach as it was: everything that it looks up is a table of others, and nothing is read from a source."""
    TABLES["posted"] = [{url: " ".join(people) for url, people in POSTED.items()}]
    TABLES["followers"] = [{name: " ".join(people) for name, people in FOLLOWERS.items()}]
    topology = TridentTopology("reach")
    posted, follow = (topology.static_state(Versions(name)) for name in ("posted", "followers"))

    @topology.query("reach", "word string")
    def reach(urls: Stream) -> Stream:
        people = urls.state_query(posted, output=["people"]).flat_map(each_of("people"), WORD)
        them = people.state_query(follow, output=["people"]).flat_map(each_of("people"), WORD)
        return them.group_by("word").aggregate(Count()).aggregate(reach=Count())

    return topology


def each_of(field: str) -> Callable[[Any], list[tuple[str]]]:
    return lambda row: [(word,) for word in (row[field] or "").split()]


@pytest.mark.parametrize(("url", "reach"), [("foo.com/blog/1", 16), ("engineering.twitter.com/blog/5", 14), ("aaa", 0)])
def test_a_topology_of_queries_alone_answers_without_a_run(url: str, reach: int) -> None:
    """The numbers of Storm's TridentReach."""
    with QueryClient(followers().build()) as client:
        answer = client.execute("reach", url)
    assert (list(answer), answer.txid) == ([{"reach": reach}], 0)


def test_a_topology_of_queries_alone_is_not_run() -> None:
    topology = followers().build()
    with pytest.raises(ConfigError, match=r"topology 'reach' has queries alone \(reach\), so there is nothing to run"):
        TopologyDriver(topology, MemoryCoordinatorStore(), LocalExecutor(topology))
    with pytest.raises(ConfigError, match="topology 'words' keeps states: QueryClient takes the store"):
        QueryClient(world(MemoryTransactionalSpout, "before")[0].build())


class Longest(BatchAggregator):
    """The longest words, as many as there are."""

    output = "longest string"

    def init(self) -> list[str]:
        return []

    def aggregate(self, kept: list[str], row: Any) -> list[str]:
        longest = max([*kept, row["word"]], key=len)
        return [word for word in [*kept, row["word"]] if len(word) == len(longest)]

    def complete(self, kept: list[str]) -> list[tuple[str]]:
        return [(word,) for word in kept]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_query_may_have_a_batch_aggregator_of_ones_own(*, grouped: bool) -> None:
    topology = followers()

    @topology.query("longest", "at long, words string")
    def longest(questions: Stream) -> Stream:
        words = questions.flat_map(lambda row: [(row["at"], word) for word in row.words.split()], f"at long, {WORD}")
        return words.group_by("at").aggregate(Longest()) if grouped else words.aggregate(Longest())

    with QueryClient(topology.build()) as client:
        found = [row["longest"] for row in client.execute_many("longest", [(1, "a bbb ccc"), (2, "ddd")])]
    assert sorted(found) == ["bbb", "ccc", "ddd"]
