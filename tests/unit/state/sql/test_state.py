"""`SqlMapState` beyond the contract, on SQLite: what is refused, names and types, statements, secrets, outcomes."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import event

from state.fence import WriteRefused
from state.row_table import RowTable
from state.rows.value_limits import ValueLimits
from state.sql.state import SqlMapState
from state.sql.table import ROWS_PER_STATEMENT, StateTable
from tests.contract.states import OWNER, Place, content, counts
from transactional.core.ports import Partials, StateKind
from transactional.errors import (
    ConfigError,
    Fenced,
    OperatingError,
    ProtocolError,
    SchemaMismatch,
    StoreMismatch,
    SumOverflow,
    TableConflict,
)
from transactional.model.attempt import AttemptId, TxId
from transactional.model.schema import Schema


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place("sqlite", tmp_path, url=f"sqlite:///{tmp_path}/states.db")
    yield place
    place.close()


def opened(
    place: Place, table: str = "words", key: Any = "word string", values: str = "count long", owner: str = OWNER,
    kind: type[SqlMapState] = SqlMapState, **options: Any,
) -> SqlMapState:  # fmt: skip
    state = kind(place.url, table, key, values, **options)
    place.opened.append(state)
    state.open(owner, place.txids.__getitem__)
    return state


def execute(place: Place, statement: str) -> list[Any]:
    """What somebody does in SQL."""
    with closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute(statement).fetchall()
        connection.commit()
    return rows


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("mysql://me:hidden@host/db", r"sqlite:///… or postgresql://…, not mysql://…"),
            ("me:hidden@host", r"a state needs a URL such as sqlite:///states\.db"),
            ("postgresql://me:hidden@host:port/db", "the one given can't be read"),
            ("sqlite:////no/such/folder/counts.db", "the folder of a state, /no/such/folder/counts.db, does not exist"),
            ("sqlite://counts.db", "a state names a host, and SQLite has none: did you mean sqlite:///counts"),
            ("sqlite://data/counts.db?timeout=3", "did you mean sqlite:///data/counts"),
            ("sqlite://me:hidden@here:1/counts.db", "did you mean sqlite:///here/counts"),
        ],
    )
    def test_that_cannot_be_used_are_reported(self, url: str, told: str) -> None:
        with pytest.raises(ConfigError, match=told) as caught:
            SqlMapState(url, "words", "word string")
        assert "hidden" not in str(caught.value)

    def test_a_missing_driver_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(
            ConfigError, match=r"://\*\*\*@host/db needs psycopg 3: install transactional-topologies\[postgres\]"
        ):
            SqlMapState("postgresql://me:hidden@host/db", "words", "word string")

    @pytest.mark.parametrize("where", ["me:hidden@127.0.0.1:1/db", "127.0.0.1:1/db?user=me&password=hidden"])
    def test_the_password_is_never_shown(self, where: str) -> None:
        state = SqlMapState(f"postgresql://{where}", "words", "word string", "count long")
        for call in (lambda: state.open(OWNER, dict[AttemptId, TxId]().__getitem__), state.read):
            with pytest.raises(OperatingError, match=r"'words' in postgresql://.*\*\*\*.* does not respond") as caught:
                call()
            assert "hidden" not in str(caught.value)
        assert "hidden" not in repr(state) + state.declared.table + str(dict(state.identity()))
        assert state.identity()["sql"] == "postgresql://127.0.0.1:1/db"

    @pytest.mark.parametrize(
        ("url", "place"),
        [
            ("postgresql://me:old@host/db", "postgresql://host:5432/db"),
            ("postgresql+psycopg://you:new@host:5432/db?sslmode=require", "postgresql://host:5432/db"),
            ("postgresql://me@/db?host=/run/sockets&port=5433", "postgresql:///run/sockets:5433/db"),
            (
                "postgresql://me@host/db?options=-csearch_path%3Dcounts%20-c%20geqo=off",
                "postgresql://host:5432/db?search_path=counts",
            ),
        ],
    )
    def test_the_identity_is_where_the_table_lies_however_one_logs_in(self, url: str, place: str) -> None:
        assert SqlMapState(url, "words", "word string", "count long").identity() == {
            "sql": place, "table": "words", "key": "word string", "values": "count long", "kind": "opaque",
        }  # fmt: skip

    def test_a_file_is_the_same_however_it_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        for url in ("sqlite:///counts.db", "sqlite:///./counts.db", f"sqlite:///{tmp_path}/counts.db"):
            assert SqlMapState(url, "t", "k string", "v long").identity()["sql"] == f"sqlite:///{tmp_path}/counts.db"


class TestNamesAndTypes:
    def test_any_name_is_quoted(self, place: Place) -> None:
        key, values = "Select string, `a%b` long, `x:y` long", "`group` long, `drop?` string"
        state = opened(
            place, 'Order "by"; DROP TABLE words; --', key, values, columns={"txid": "Table", "prev_txid": "%s"}
        )
        state.put(place.attempt(1, 1), {("a", 1, None): (1, "'; --"), ("a", 1, 2): (2, None)})
        state.put(place.attempt(2, 2), {("a", 1, None): (3, "%(v0)s")})
        assert content(state) == {("a", 1, None): (3, "%(v0)s"), ("a", 1, 2): (2, None)}
        assert state.get(place.attempt(2, 3), [("a", 1, None)]) == {("a", 1, None): (1, "'; --")}

    @pytest.mark.parametrize("table", ["", " ", "t" * 64, "ä" * 32])
    def test_a_table_has_a_name_that_postgresql_can_hold(self, place: Place, table: str) -> None:
        with pytest.raises(ConfigError, match="must have 1 to 63 bytes"):
            SqlMapState(place.url, table, "word string")

    def test_a_column_too_with_what_is_put_before_it(self, place: Place) -> None:
        long = "c" * 59
        with pytest.raises(ConfigError, match=r"'prev_c+' must have 1 to 63 bytes"):
            SqlMapState(place.url, "words", "word string", f"{long} long")
        SqlMapState(place.url, "words", "word string", f"{long} long", columns={f"prev_{long}": "before"})

    def test_nested_types_are_refused_when_the_topology_is_built(self, place: Place) -> None:
        with pytest.raises(ConfigError, match=r"column 'tags' is a array<string>, which a SQL table can't store"):
            SqlMapState(place.url, "words", "word string", "tags array<string>")
        state = SqlMapState(place.url, "words", "word")
        with pytest.raises(ConfigError, match="key column 'word' is nested"):
            state.count().bind_input(Schema.parse("word array<string>"), used_by="bolt 'count'")

    def test_columns_follow_from_the_input(self, place: Place) -> None:
        state = SqlMapState(place.url, "delays", ["carrier"])
        state.sum("delay").bind_input(Schema.parse("carrier string, delay decimal(10,2)"), used_by="bolt 'delays'")
        assert (str(state.key), str(state.values)) == ("carrier string", "sum_delay decimal(20,2)")

    def test_a_sum_that_no_longer_fits_is_reported_and_nothing_is_written(self, place: Place) -> None:
        state = opened(place)
        state.merge(place.attempt(1, 1), counts({"a": 2**62}))
        with pytest.raises(SumOverflow, match="does not fit"):
            state.merge(place.attempt(2, 2), counts({"b": 1, "a": 2**62}))
        assert (state.version(), content(state)) == (1, {"a": 2**62})

    def test_what_a_database_refuses_is_reported_in_the_task_with_column_and_key(self, place: Place) -> None:
        for limits in (ValueLimits("'s'", zero_bytes=False), ValueLimits("'s'")):
            rows = pa.table({"word": ["a", "b\0"], "note": [None, "c"]})
            if limits.zero_bytes:
                limits.check(rows, 1)
            else:
                with pytest.raises(SchemaMismatch, match=r"'s' can't store the value in column 'word' of .*word=b"):
                    limits.check(rows, 1)
        state = SqlMapState(place.url, "words", "word string", "day date")
        days = pa.array([0, 10**7], pa.int32()).cast(pa.date32())
        partials = Partials({"day": "max"}, pa.table({"word": ["a", "b"], "day": days}))
        state.open(OWNER, place.txids.__getitem__)
        with pytest.raises(SchemaMismatch, match="in column 'day' of the row with word=b: a time outside"):
            state.merge(place.attempt(1, 1), partials)
        assert state.version() is None
        assert isinstance(state.declared.value_limits, ValueLimits)
        state.close()

    def test_a_row_that_does_not_fit_is_named(self, place: Place) -> None:
        with pytest.raises(SchemaMismatch, match=r"state 'words' in .*the first such row is \('b', 10000000"):
            opened(place).put(place.attempt(1, 1), {("a",): (1,), ("b",): (10**30,)})

    def test_a_state_that_is_not_exact_is_refused(self, place: Place) -> None:
        with pytest.raises(ConfigError, match=r"OPAQUE or StateKind\.TRANSACTIONAL"):
            SqlMapState(place.url, "words", "word string", kind=StateKind.NON_TRANSACTIONAL)


class TestTables:
    def test_what_others_see_are_plain_columns(self, place: Place) -> None:
        state = opened(place)
        state.merge(place.attempt(1, 1), counts({"a": 1, "b": 1}))
        state.merge(place.attempt(2, 2), counts({"a": 4}))
        found = execute(place, "SELECT word, count, txid, prev_txid, prev_count FROM words ORDER BY word")
        assert found == [("a", 5, 2, 1, 1), ("b", 1, 1, None, None)]
        assert execute(place, "SELECT table_name, owner, attempt_id FROM transactional_states") == [("words", OWNER, 2)]

    def test_a_key_is_found_by_its_index(self, place: Place) -> None:
        opened(place, key="word string, number int")
        for condition in ("word = 'a'", "(word, number) IN (VALUES ('a', 1))", "word IS NULL AND number IN (1, 2)"):
            [*_, plan] = execute(place, f"EXPLAIN QUERY PLAN SELECT * FROM words WHERE {condition}")[0]
            assert "USING INDEX" in plan

    def test_one_that_no_state_has_made_is_refused_and_left_alone(self, place: Place) -> None:
        execute(place, "CREATE TABLE words (word TEXT, count BIGINT)")
        execute(place, "INSERT INTO words VALUES ('a', 1)")
        with pytest.raises(SchemaMismatch, match=r"'words' in sqlite.*that no state has created.*another table"):
            opened(place)
        assert execute(place, "SELECT * FROM words") == [("a", 1)]

    @pytest.mark.parametrize(
        ("key", "values"),
        [("word string", "total long"), ("word string", "count int"), ("word string, count long", "total long"),
         ("WORD string", "count long")],
    )  # fmt: skip
    def test_one_of_another_shape_is_refused(self, place: Place, key: str, values: str) -> None:
        opened(place)
        with pytest.raises(
            SchemaMismatch, match="was created with the key 'word string' and the columns 'word string, co"
        ):
            opened(place, key=key, values=values)

    def test_one_whose_columns_were_changed_is_refused(self, place: Place) -> None:
        opened(place).close()
        execute(place, "ALTER TABLE words RENAME COLUMN prev_count TO before")
        with pytest.raises(SchemaMismatch, match="and has word, count, txid, prev_txid, before; the state needs"):
            opened(place)

    @pytest.mark.parametrize("layout", [2, 4])
    def test_one_of_another_layout_is_refused(self, place: Place, layout: int) -> None:
        opened(place)
        execute(place, f"UPDATE transactional_states SET layout = {layout}")
        message = f"state 'words' in .* has version {layout} of the layout of states, and version 3 is .* another name"
        with pytest.raises(SchemaMismatch, match=message):
            opened(place)
        with pytest.raises(SchemaMismatch, match=message):
            SqlMapState(place.url, "words", "word string", "count long").read()

    def test_one_that_was_dropped_is_reported_with_the_way_out(self, place: Place) -> None:
        opened(place).close()
        execute(place, "DROP TABLE words")
        with pytest.raises(SchemaMismatch, match="the table does not exist, but transactional_states lists it"):
            opened(place)
        execute(place, "DELETE FROM transactional_states")
        assert content(opened(place)) == {}

    def test_one_with_rows_of_another_topology_is_refused(self, place: Place) -> None:
        opened(place).merge(place.attempt(7, 1), counts({"a": 1}))
        with pytest.raises(StoreMismatch, match="rows of transaction 7, written by words/count and not by other/count"):
            opened(place, owner="other/count")

    def test_an_empty_one_goes_to_another_topology_and_its_first_owner_is_reported(self, place: Place) -> None:
        first = opened(place)
        place.fence(first, 0, 5)
        second = opened(place, owner="other/count")
        assert second.version() is None
        told = "was the table of words/count and is that of other/count now"
        with pytest.raises(StoreMismatch, match=told):
            first.fence(AttemptId(6))
        with pytest.raises(StoreMismatch, match=told):
            first.put(place.attempt(1, 7), {("a",): (1,)})
        second.merge(place.attempt(1, 1), counts({"a": 1}))
        assert content(second) == {"a": 1}

    def test_a_registry_that_was_deleted_under_a_running_topology_is_reported(self, place: Place) -> None:
        state = opened(place)
        execute(place, "DELETE FROM transactional_states")
        with pytest.raises(StoreMismatch, match="was the table of words/count and is no longer there"):
            state.merge(place.attempt(1, 1), counts({"a": 1}))

    def test_several_lie_in_one_database(self, place: Place) -> None:
        words, letters = opened(place, "words"), opened(place, "letters", "letter string", owner="words/letters")
        words.merge(place.attempt(1, 1), counts({"a": 1}))
        letters.merge(place.attempt(1, 1), counts({"x": 2}, "letter string"))
        assert (content(words), content(letters)) == ({"a": 1}, {"x": 2})

    def test_it_is_used_after_open_only_and_read_without(self, place: Place) -> None:
        state = SqlMapState(place.url, "words", "word string", "count long")
        place.opened.append(state)
        with pytest.raises(ProtocolError, match=r"was used before open\(\)"):
            state.version()
        with pytest.raises(OperatingError, match="no such table"):
            state.read()
        opened(place).merge(place.attempt(1, 1), counts({"a": 1}))
        assert state.read().to_pylist() == [{"word": "a", "count": 1}]


class TestStatements:
    def test_rows_are_written_a_chunk_at_a_time(self, place: Place) -> None:
        """Whatever the number of keys: a look at the version, its move, and two statements per thousand rows."""
        state = opened(place)
        statements: list[str] = []
        event.listen(
            state._database._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
        )
        words = {f"word {number}": 1 for number in range(2 * ROWS_PER_STATEMENT + 1)}
        for txid in (1, 2):
            state.merge(place.attempt(txid, txid), counts(words))
        kinds = [statement.split()[0] for statement in statements if not statement.startswith("BEGIN")]
        assert kinds == 2 * ["SELECT", "UPDATE", *3 * ["SELECT"], *3 * ["INSERT"]]
        assert content(state) == dict.fromkeys(words, 2)
        found = state.get(place.attempt(3, 3), [(word,) for word in words])
        assert found == {(word,): (2,) for word in words}

    def test_a_key_of_many_columns_fits_into_a_statement(self, place: Place) -> None:
        key = ", ".join(f"k{number} long" for number in range(60))
        state = opened(place, key=key)
        rows: dict[tuple[Any, ...], tuple[Any, ...]] = {(number, *range(59)): (number,) for number in range(1_500)}
        state.put(place.attempt(1, 1), rows)
        assert state.get(place.attempt(2, 2), list(rows)) == rows

    def test_null_keys_of_every_pattern(self, place: Place) -> None:
        state = opened(place, key="a long, b string, c date")
        keys = [(a, b, None) for a in (None, 0, 1) for b in (None, "", "x")]
        for txid in (1, 2):
            state.merge(place.attempt(txid, txid), counts(dict.fromkeys(keys, 1), "a long, b string, c date"))
        state.merge(place.attempt(2, 3), counts({keys[0]: 5}, "a long, b string, c date"))
        assert content(state) == {**dict.fromkeys(keys, 1), keys[0]: 6}


class ForgetsTheOutcome(SqlMapState):
    """Every write goes through, and is reported as failed."""

    def _confirm(self, attempt_id: AttemptId, write: Callable[[RowTable], None]) -> None:
        def forgotten(table: RowTable) -> None:
            write(table)
            table._loaded = None
            raise WriteRefused("no answer", is_conflict=False)

        super()._confirm(attempt_id, forgotten)


class TestOutcomes:
    def test_a_write_that_was_reported_as_failed_and_went_through_is_a_success(self, place: Place) -> None:
        state = opened(place, kind=ForgetsTheOutcome)
        place.fence(state, 0, 1)
        state.merge(place.attempt(1, 2), counts({"a": 1}))
        state.merge(place.attempt(1, 2), counts({"a": 1}))
        assert (state.version(), content(state)) == (2, {"a": 1})

    def test_a_write_that_fails_in_the_middle_changes_nothing(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        state = opened(place)
        state.merge(place.attempt(1, 1), counts({"a": 1, "b": 1}))
        statements = StateTable._put

        def fail(*arguments: Any) -> None:
            statements(*arguments)
            execute_wrongly(arguments[1])

        def execute_wrongly(connection: Any) -> None:
            connection.exec_driver_sql("INSERT INTO words SELECT * FROM words")

        with monkeypatch.context() as patch:
            patch.setattr(StateTable, "_put", fail)
            with pytest.raises(OperatingError, match="is at version 1; attempt 2 was not written over it: UNIQUE"):
                state.merge(place.attempt(2, 2), counts({"a": 1}))
        assert (state.version(), content(state)) == (1, {"a": 1, "b": 1})
        state.merge(place.attempt(2, 3), counts({"a": 1}))
        assert content(state) == {"a": 2, "b": 1}

    def test_a_zombie_that_has_looked_before_is_stopped_by_the_compare_and_set(self, place: Place) -> None:
        leader = opened(place)

        class Paused(SqlMapState):
            def _confirm(self, *arguments: Any) -> None:
                place.fence(leader, 0, 9)
                super()._confirm(*arguments)

        with pytest.raises(Fenced, match="was written by attempt 9, after 4"):
            opened(place, kind=Paused).merge(place.attempt(1, 4), counts({"a": 1}))
        assert (leader.version(), content(leader)) == (9, {})

    def test_a_zombie_of_another_topology_is_stopped_too(self, place: Place) -> None:
        class Paused(SqlMapState):
            def _confirm(self, *arguments: Any) -> None:
                opened(place, owner="other/count")
                super()._confirm(*arguments)

        with pytest.raises(StoreMismatch, match="is that of other/count now"):
            opened(place, kind=Paused).merge(place.attempt(1, 4), counts({"a": 1}))
        assert content(opened(place, owner="other/count")) == {}

    def test_a_writer_in_between_is_a_conflict(self, place: Place) -> None:
        state, other, attempt = opened(place), opened(place), place.attempt(1, 3)
        state.get(attempt, [("a",)])
        other.merge(place.attempt(1, 2), counts({"a": 1}))
        with pytest.raises(TableConflict, match="was at version None when 1:3 read it and is at 2 now"):
            state.put(attempt, {("a",): (1,)})
        assert content(state, committed_txid=TxId(0)) == {}


def test_a_key_may_be_declared_in_another_order_and_not_be_another_one(place: Place) -> None:
    opened(place, key="a long, b string", values="n long, m long")
    opened(place, key="b string, a long", values="m long, n long")
    for key, values in (("a long", "b string, n long, m long"), ("a long, b string, n long", "m long")):
        with pytest.raises(SchemaMismatch, match="was created with the key 'a long, b string'"):
            opened(place, key=key, values=values)
