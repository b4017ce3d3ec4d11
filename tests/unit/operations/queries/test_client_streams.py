"""Queries of several streams, and of tables of others: Storm's TridentReach, written again (Storm rows R5 and E4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState
from tests.unit.operations.queries.words import run
from transactional.errors import ConfigError
from transactional.model.facts import StaticVersion
from transactional.model.reading import StaticTable
from transactional.model.schema import Schema
from transactional.queries import QueryClient
from transactional.trident import Count, Stream, Sum, TridentTopology

TWEETERS = {
    "foo.com/blog/1": "sally bob tim george nathan",
    "engineering.twitter.com/blog/5": "adam david sally nathan",
    "tech.backtype.com/blog/123": "tim mike john",
}
FOLLOWERS = {
    "sally": "bob tim alice adam jim chris jai",
    "bob": "sally nathan jim mary david vivian",
    "tim": "alex",
    "nathan": "sally bob adam harry chris vivian emily jordan",
    "adam": "david carissa",
    "mike": "john bob",
    "john": "alice nathan jim mike bob",
}
READ: list[int] = []
"""The versions that were looked up."""


@dataclass(frozen=True)
class Map(StaticTable):
    """A table of words; each look for its newest version finds another one."""

    name: str
    key: Schema = field(default=Schema(()))
    values: Schema = field(default=Schema(()))
    rows: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def table(self) -> str:
        return self.name

    def newest(self) -> StaticVersion:
        return str(len(READ))

    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        READ.append(int(version))
        return pa.table([list(self.rows), list(self.rows.values())], [*self.key.names, *self.values.names])


@pytest.fixture(scope="module")
def client() -> Iterator[QueryClient]:
    topology = TridentTopology("words")
    stream = topology.new_stream("words", MemoryTransactionalSpout([[("a",), ("b",), ("a",)]], "word string", 1))
    counts = stream.group_by("word").persistent_aggregate(MemoryMapState(), Count())
    tweeters = topology.static_state(Map("tweeters", Schema.parse("url string"), Schema.parse("by string"), TWEETERS))
    followers = topology.static_state(Map("follow", Schema.parse("by string"), Schema.parse("who string"), FOLLOWERS))

    @topology.query("reach", "url string")
    def reach(urls: Stream) -> Stream:
        by = urls.state_query(tweeters).flat_map(lambda row: (row.by or "").split(), "by string")
        who = by.state_query(followers).flat_map(lambda row: (row.who or "").split(), "who string")
        return who.group_by("who").aggregate(one=Count()).aggregate(reach=Count())

    @topology.query("twice", "by string")
    def twice(by: Stream) -> Stream:
        return by.state_query(followers).rename(first="who").state_query(followers)

    @topology.query("joined", "line string")
    def joined(lines: Stream) -> Stream:
        words = lines.flat_map(lambda row: row.line.split(), "word string")
        sizes = words.map(lambda row: (row.word, len(row.word)), "other string, size long")
        return topology.join((words.state_query(counts), "word"), (sizes, "other"), how="left")

    @topology.query("merged", "line string")
    def merged(lines: Stream) -> Stream:
        words = lines.flat_map(lambda row: row.line.split(), "word string")
        loud = words.map(lambda row: row.word.upper(), "word string")
        return topology.merge(words, loud).state_query(counts).aggregate(total=Sum("count"), words=Count())

    built = topology.build()
    with QueryClient(built, run(built)) as client:
        yield client


@pytest.mark.parametrize(
    ("url", "reach"), [("foo.com/blog/1", 16), ("engineering.twitter.com/blog/5", 14), ("unknown.com", 0)]
)
def test_reach(client: QueryClient, url: str, reach: int) -> None:
    """What Storm's example prints."""
    assert list(client.execute("reach", url)) == [{"reach": reach}]


def test_one_answer_reads_one_version_of_a_table(client: QueryClient) -> None:
    READ.clear()
    assert list(client.execute("twice", "tim")) == [{"by": "tim", "first": "alex", "who": "alex"}]
    assert READ == [0, 0]
    client.execute("twice", "tim")
    assert READ == [0, 0, 2, 2]


def test_streams_of_a_query_are_joined(client: QueryClient) -> None:
    assert list(client.execute("joined", "a ccc")) == [
        {"word": "a", "count": 2, "size": 1},
        {"word": "ccc", "count": None, "size": 3},
    ]


def test_streams_of_a_query_are_merged(client: QueryClient) -> None:
    assert list(client.execute("merged", "a b c")) == [{"total": 3, "words": 6}]


def test_streams_of_a_query_are_combined_with_none_of_the_topology() -> None:
    topology = TridentTopology("words")
    words = topology.new_stream("words", MemoryTransactionalSpout([[]], "word string", 1))
    with pytest.raises(ConfigError, match="can't be combined with others"):
        topology.query("both", "word string")(lambda asked: topology.merge(asked, words))
    with pytest.raises(ConfigError, match="can't be combined with others"):
        topology.query("again", "word string")(lambda asked: topology.merge(words, asked))
