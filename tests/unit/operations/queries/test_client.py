"""Questions from outside: each answer is of one committed transaction, over all states (Storm rows R5, R12, R33)."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState, MemoryTable
from state.sql.state import SqlMapState
from tests.unit.operations.queries.words import run, word_count
from transactional.core.ports import State
from transactional.core.store import CoordinatorStore, Position
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError, OperatingError, QueryFailed
from transactional.model.attempt import TxId
from transactional.queries import QueryClient, as_of
from transactional.testing import MemoryCoordinatorStore

BATCHES: list[list[tuple[Any, ...]]] = [[("the", 3), ("dog", 3)], [("the", 3), ("cat", 3)], [("a", 1)]]
KINDS = ["memory", "sqlite", "merge", "log"]


def states_of(kind: str, folder: Path) -> tuple[State, State]:
    """Two empty states."""
    if kind == "memory":
        return MemoryMapState(), MemoryMapState(table=MemoryTable("sizes"))
    if kind == "sqlite":
        url = f"sqlite:///{folder / 'states.db'}"
        return SqlMapState(url, "words"), SqlMapState(url, "sizes")
    if kind == "mixed":
        return DeltaMapState(folder / "words"), SqlMapState(f"sqlite:///{folder / 'states.db'}", "sizes")
    layout = LogLayout(compact_after=3) if kind == "log" else kind
    return DeltaMapState(folder / "words", layout=layout), DeltaMapState(folder / "sizes", layout=layout)


def start_over(kind: str, folder: Path, store: CoordinatorStore) -> tuple[State, State]:
    """As `docs/howto/lifecycle.md` says: reset, and the tables deleted; two empty states at their places."""
    assert store.reset("words")
    for place in folder.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    return states_of(kind, folder)


def test_what_is_no_topology_is_named() -> None:
    for build in (QueryClient, as_of):
        with pytest.raises(ConfigError, match=r"is the function word_count, not a Topology: call it, word_count\(\)$"):
            build(word_count, "sqlite:///words.db")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["merge", "log"])
def test_a_topology_that_was_started_over_is_answered_from_its_new_tables(kind: str, tmp_path: Path) -> None:
    """By a client that was open all the time, and nobody has asked meanwhile: it is at the same transaction again."""
    topology = word_count(*states_of(kind, tmp_path), BATCHES)
    with QueryClient(topology, store := run(topology)) as client:
        assert client.execute("count_of", "the")[0]["count"] == 2
        run(word_count(*start_over(kind, tmp_path, store), [*BATCHES[:1], [("dog", 3), ("dog", 3), ("dog", 3)]]), store)
        for _ in range(2):
            answer = client.execute("both", "the dog")
            assert (answer.txid, [row["count"] for row in answer]) == (3, [1, 4])


@pytest.mark.parametrize("kind", ["merge", "log", "mixed"])
def test_so_it_is_when_somebody_asks_meanwhile(kind: str, tmp_path: Path) -> None:
    """Nothing is there then, and later more transactions than before: whatever was pinned is another table's by now."""
    topology = word_count(*states_of(kind, tmp_path), BATCHES)
    with QueryClient(topology, store := run(topology)) as client:
        assert client.execute("count_of", "a")[0]["count"] == 1
        states = start_over(kind, tmp_path, store)
        assert (client.execute("count_of", "a").txid, client.execute("count_of", "a")[0]["count"]) == (0, None)
        run(word_count(*states, [*BATCHES, *BATCHES]), store)
        assert [client.execute("count_of", word)[0]["count"] for word in ("the", "a")] == [4, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_what_each_query_answers(kind: str, tmp_path: Path) -> None:
    """Values of one state, of two, aggregates of them; NULL and one row where there is nothing."""
    topology = word_count(*states_of(kind, tmp_path), BATCHES)
    with QueryClient(topology, run(topology)) as client:
        assert client.execute("count_of", "the").txid == 3
        assert list(client.execute("count_of", "the")) == [
            {"word": "the", "count": 2, "sum_n": 6, "count_n": 2, "mean": 3.0}
        ]
        of_nobody = {"word": None, "count": None, "sum_n": None, "count_n": None, "mean": None}
        assert list(client.execute("count_of", None)) == [of_nobody]
        both = client.execute("both", "dog the x dog")
        assert [(row["word"], row["count"], row["words"]) for row in both] == [
            *[("dog", 1, 4), ("the", 2, 4), ("x", None, 1), ("dog", 1, 4)]
        ]
        assert list(client.execute("total", "dog the x")) == [{"total": 3, "words": 3}]
        assert list(client.execute("total", "")) == [{"total": 0, "words": 0}]
        assert [row["word"] for row in client.execute_many("count_of", [("a",), ("b",)])] == ["a", "b"]
        assert list(client.execute_many("total", [("dog",), ("the a",), ("",)])) == [
            *({"total": 1, "words": 1}, {"total": 3, "words": 2}, {"total": 0, "words": 0})
        ]
        assert list(client.execute_many("total", [])) == list(client.execute_many("count_of", [])) == []


def test_before_the_first_transaction_there_is_nothing(tmp_path: Path) -> None:
    """The store knows the topology, and no table is there."""
    topology = word_count(*states_of("merge", tmp_path), [])
    with QueryClient(topology, run(topology)) as client:
        answer = client.execute("total", "the dog")
        assert (answer.txid, list(answer)) == (0, [{"total": None, "words": 2}])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_while_transactions_commit_each_answer_is_of_one_that_was_committed(kind: str, tmp_path: Path) -> None:
    """Both tables are as of the transaction that the answer names, although one is written after the other, and
    compacted."""
    rows = [("the" if n % 3 else "dog", 1 + n % 2) for n in range(40)]
    topology = word_count(*states_of(kind, tmp_path), [rows], take=2)
    store = SqlCoordinatorStore(f"sqlite:///{tmp_path / 'store.db'}")
    store_of_reader = SqlCoordinatorStore(f"sqlite:///{tmp_path / 'store.db'}")
    running = threading.Thread(target=run, args=(topology, store))
    running.start()
    answers = 0
    with QueryClient(topology, store_of_reader) as client:
        while running.is_alive() or not answers:
            if not (known := store_of_reader.status("words")):
                continue
            answer = client.execute("both", "the dog x it")
            after = store_of_reader.status("words")[0].committed_txid
            assert known[0].committed_txid <= answer.txid <= after
            committed = rows[: 2 * answer.txid]
            words, sizes = Counter(word for word, _ in committed), Counter(size for _, size in committed)
            assert [row["count"] for row in answer] == [words[w] or None for w in ("the", "dog", "x", "it")]
            assert [row["words"] for row in answer] == [sizes[n] or None for n in (3, 3, 1, 2)]
            answers += 1
    running.join()
    store.close()
    store_of_reader.close()


def test_threads_that_share_a_client_get_their_own_answers(tmp_path: Path) -> None:
    topology, words = word_count(*states_of("memory", tmp_path), BATCHES), ["the", "dog"]
    begun = threading.Barrier(len(words))
    with QueryClient(topology, run(topology)) as client, ThreadPoolExecutor(len(words)) as threads:

        def ask(word: str) -> list[list[Any]]:
            begun.wait()
            return [[row["word"] for row in client.execute("count_of", word)] for _ in range(30)]

        assert list(threads.map(ask, words)) == [[[word]] * 30 for word in words]


@pytest.mark.parametrize("looks", range(3))
def test_a_question_that_is_given_up_ends_at_its_next_batch(looks: int, tmp_path: Path) -> None:
    """At a look-up, or at a batch that a step has emitted; the next question finds everything as it was."""
    topology, answers = word_count(*states_of("memory", tmp_path), BATCHES), iter([*[False] * looks, True])
    with QueryClient(topology, run(topology)) as client:
        with pytest.raises(QueryFailed, match="query 'count_of' was given up before it was answered"):
            client.execute_many("count_of", [("the",)], is_given_up=lambda: next(answers))
        assert next(answers, None) is None, "it was called once more"
        assert client.execute("count_of", "the")[0]["count"] == 2


def test_a_client_that_is_closed_meanwhile_closes_the_tables_of_a_question_when_it_ends(tmp_path: Path) -> None:
    topology = word_count(*states_of("sqlite", tmp_path), BATCHES)
    client = QueryClient(topology, run(topology))

    def close() -> bool:
        client.close()
        return False

    assert client.execute_many("count_of", [("the",)], is_given_up=close)[0]["count"] == 2
    assert not client._free_tables


def test_between_two_questions_no_database_transaction_is_open(tmp_path: Path) -> None:
    """Else what is written meanwhile stays in SQLite's log for as long as nobody has a question."""
    topology = word_count(*states_of("sqlite", tmp_path), BATCHES)
    with QueryClient(topology, run(topology)) as client, closing(sqlite3.connect(tmp_path / "states.db")) as other:
        assert client.execute("both", "the").txid == 3
        other.execute("CREATE TABLE more (n)")
        other.commit()
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)


class Moving(MemoryCoordinatorStore):
    """A store that somebody moves on while tables are opened."""

    def __init__(self, inner: CoordinatorStore, moves: int, step: Any) -> None:
        super().__init__()
        self._inner, self._moves, self._step, self.queried = inner, moves, step, 0

    def position(self, topology_id: str) -> Position | None:
        """As of now; then it moves."""
        found = self._inner.position(topology_id)
        self.queried += 1
        if self.queried <= self._moves:
            self._step()
        return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("moves", [1, 2, 7])
def test_a_transaction_that_commits_between_two_tables_is_noticed(kind: str, moves: int, tmp_path: Path) -> None:
    """The tables are opened again, or those with a history where they were; the answer is of one transaction."""
    rows = [(f"w{n % 2}", 1) for n in range(20)]
    topology = word_count(*states_of(kind, tmp_path), [rows[:2]], take=1)
    inner = run(topology)
    taken = iter(range(3, 20))

    def step() -> None:
        words, sizes = _same(topology)
        more = word_count(words, sizes, [rows[: next(taken)]], take=1)
        run(more, inner)

    store = Moving(inner, moves, step)
    with QueryClient(topology, store) as client:
        answer = client.execute("both", "w0 w1 x")
    committed = Counter(word for word, _ in rows[: answer.txid])
    assert [row["count"] for row in answer] == [committed["w0"] or None, committed["w1"] or None, None]
    assert answer[2]["words"] == answer.txid


def _same(topology: Any) -> Iterator[Any]:
    """Other handles of the same tables."""
    for component in topology.committers:
        state = component.state
        if isinstance(state, MemoryMapState):
            yield MemoryMapState(table=state.stored)
        elif isinstance(state, SqlMapState):
            address = state.parts.examination.address()
            assert address is not None
            yield SqlMapState(str(address.uri), "words" if "words" in state.declared.table else "sizes")
        else:
            yield DeltaMapState(state.location, layout="auto")


def test_mistakes_of_who_asks(tmp_path: Path) -> None:
    """One clear line each."""
    topology = word_count(*states_of("memory", tmp_path), BATCHES)
    store = run(topology)
    with QueryClient(topology, store) as client:
        with pytest.raises(
            ConfigError, match=r"there is no query 'count'; there are: count_of, both, total, shout — did"
        ):
            client.execute("count", "the")
        with pytest.raises(ConfigError, match=r"'count_of' takes 1 values, 'word string'; got \('a', 'b'\)"):
            client.execute("count_of", "a", "b")
        with pytest.raises(ConfigError, match=r"values given do not fit: .*: 3 is a value of type int, and a") as wrong:
            client.execute("count_of", 3)
        assert {frame.f_code.co_filename for frame, _ in walk_tb(wrong.value.__traceback__)} == {__file__}
        with pytest.raises(QueryFailed, match=r"query 'shout': .*ZeroDivisionError: division by zero"):
            client.execute("shout", "")
        assert list(client.execute("shout", "ab")) == [{"size": 0.5}], "a failure leaves nothing behind"
    unknown = pytest.raises(ConfigError, match="the store does not know topology 'other'")
    with QueryClient(replace(topology, id="other"), store) as client, unknown:
        client.execute("count_of", "the")


class Rewinding(Moving):
    """A store in whose topology tables are being put back."""

    def position(self, topology_id: str) -> Position | None:
        """With the intent of a rewind."""
        found = super().position(topology_id)
        return None if found is None else replace(found, rewinding_to=TxId(1))


def test_while_tables_are_put_back_nobody_is_answered(tmp_path: Path) -> None:
    """They are at no one transaction."""
    topology = word_count(*states_of("memory", tmp_path), BATCHES)
    refused = pytest.raises(OperatingError, match="is being rewound to transaction 1")
    with QueryClient(topology, Rewinding(run(topology), 0, None)) as client, refused:
        client.execute("count_of", "the")


def test_a_table_that_is_gone_is_told(tmp_path: Path) -> None:
    """The store has committed transactions, and the table is not there."""
    topology = word_count(*states_of("merge", tmp_path), BATCHES)
    store = run(topology)
    (tmp_path / "words").rename(tmp_path / "elsewhere")
    with QueryClient(topology, store) as client, pytest.raises(OperatingError, match="words"):
        client.execute("count_of", "the")


def test_a_notebook_shows_the_rows_of_an_answer(tmp_path: Path) -> None:
    topology = word_count(*states_of("memory", tmp_path), BATCHES)
    with QueryClient(topology, run(topology)) as client:
        view = client.execute_many("count_of", [("the",), (None,)])._repr_mimebundle_()
    assert view["text/plain"].splitlines()[0] == "as of transaction 3: 2 rows"
    assert "<td>the</td><td>2</td>" in view["text/html"]
