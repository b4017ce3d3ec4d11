"""Histories of transactions in a real store and real SQL tables; and ways to falsify the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from sqlalchemy import create_engine, text

from state.sql.state import SqlMapState
from tests.unit.histories import COUNTING, ID, History
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from verifier.checker import verify
from verifier.evidence.findings import Kind, Report
from verifier.sql_tables import CheckedSqlTable

SQL_COMMITTERS = ("count", "latest")
COMMITTED = 12
"""The last transaction of a history that went through everything."""


@dataclass
class SqlHistory(History):
    """A topology whose states are in one database: one counts words, the other keeps the latest value of each."""

    database: str = ""

    @property
    def states_url(self) -> str:
        """The URL of the states' database."""
        return self.database or f"sqlite:///{self.folder}/states.db"

    def close(self) -> None:
        """Close the states' connections."""
        for state in self.states.values():
            state.close()

    def make_states(self) -> dict[str, Any]:
        self.close()
        return {
            name: SqlMapState(self.states_url, name, "word string", "count long", kind=self.kind)
            for name in SQL_COMMITTERS
        }

    def checked(self, component: str) -> CheckedSqlTable:
        """The table of a component, for the checker."""
        counts = "count" if component in COUNTING else None
        return CheckedSqlTable(component, self.states_url, component, counts=counts)

    def report(self, components: Sequence[str] = SQL_COMMITTERS, **options: Any) -> Report:
        return verify(self.url, ID, list(map(self.checked, components)), **options)

    def kinds(self) -> set[Kind]:
        return set(self.report().counts)

    def change(self, *statements: str) -> None:
        """Change the states' database behind everybody's back."""
        engine = create_engine(self.states_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()

    def attempt_of(self, txid: int) -> int:
        """The attempt that committed a transaction."""
        with closing(SqlCoordinatorStore(self.url)) as store:
            attempts = store.attempts(ID, limit=1_000)
        return next(a.attempt.attempt_id for a in attempts if a.attempt.txid == txid and a.phase == "committed")


def changed(*statements: str) -> Callable[[SqlHistory], None]:
    """A falsification in the states' database."""
    return lambda history: history.change(*statements)


def at_attempt_of(txid: int, *statements: str) -> Callable[[SqlHistory], None]:
    """The count's version is that of an older transaction."""

    def falsify(history: SqlHistory) -> None:
        version = history.attempt_of(txid)
        history.change(
            f"UPDATE transactional_states SET attempt_id = {version} WHERE table_name = 'count'", *statements
        )

    return falsify


def as_a_dead_attempt_left_it(history: SqlHistory) -> None:
    """A transaction was tried, and then committed by another attempt; the table says that the first one wrote it."""
    history.start()
    history.transaction({"owl": 1}, dies_after="tables")
    dead = history.attempt_id
    history.transaction({"owl": 1})
    history.change(f"{OWNER} attempt_id = {dead} WHERE table_name = 'count'")


def rewind_the_store(history: SqlHistory) -> None:
    """The store is one from a backup, two transactions older."""
    history.sql(
        "UPDATE transactional_attempts SET phase = 'failed' WHERE txid > 10",
        "UPDATE transactional_topologies SET committed_txid = 10, committed_attempt_id = "
        "(SELECT attempt_id FROM transactional_attempts WHERE txid = 10)",
    )


OWNER = "UPDATE transactional_states SET"
FALSIFIED: list[tuple[str, Callable[[SqlHistory], None], set[Kind]]] = [
    ("a row is updated", changed("UPDATE count SET count = count + 1 WHERE word = 'cat'"), {Kind.WRONG_COUNT}),
    ("rows are deleted", changed("DELETE FROM count WHERE word = 'emu'"), {Kind.WRONG_COUNT}),
    ("half of a transaction is", changed(f"DELETE FROM count WHERE word = 'word-{COMMITTED}'"), {Kind.WRONG_COUNT}),
    (
        "a row is ahead",
        changed(f"UPDATE latest SET txid = {COMMITTED + 1} WHERE word = 'emu'"),
        {Kind.PARTLY_VISIBLE},
    ),
    ("a row of no transaction", changed("UPDATE latest SET txid = 0 WHERE word = 'cow'"), {Kind.BROKEN_ROW}),
    ("the one before comes after", changed("UPDATE latest SET prev_txid = txid + 1"), {Kind.BROKEN_ROW}),
    ("rolled back, and not as before", changed("UPDATE latest SET prev_txid = txid"), {Kind.BROKEN_ROW}),
    ("a past without a row before", changed("UPDATE latest SET prev_txid = NULL, prev_count = 1"), {Kind.BROKEN_ROW}),
    (
        "a key with NULL is there twice",
        changed(*["INSERT INTO latest (word, count, txid) VALUES (NULL, 1, 2)"] * 2),
        {Kind.BROKEN_ROW},
    ),
    ("it is another's", changed(f"{OWNER} owner = 'birds/count' WHERE table_name = 'count'"), {Kind.WRONG_TABLE}),
    ("nobody has made it", changed("DELETE FROM transactional_states WHERE table_name = 'count'"), {Kind.WRONG_TABLE}),
    ("it is gone", changed("DROP TABLE count"), {Kind.WRONG_TABLE}),
    ("it has a column more", changed("ALTER TABLE count ADD COLUMN colour TEXT"), {Kind.WRONG_TABLE}),
    ("it has a column less", changed("ALTER TABLE count DROP COLUMN prev_count"), {Kind.WRONG_TABLE}),
    ("it says another attempt", as_a_dead_attempt_left_it, {Kind.WRONG_ATTEMPT}),
    ("the store is put back", rewind_the_store, {Kind.TABLE_AHEAD}),
    ("an unknown attempt", changed(f"{OWNER} attempt_id = 999 WHERE table_name = 'count'"), {Kind.UNKNOWN_ATTEMPT}),
    (
        "it is put back",
        at_attempt_of(COMMITTED - 1, f"DELETE FROM count WHERE txid = {COMMITTED}"),
        {Kind.TABLE_BEHIND, Kind.WRONG_COUNT},
    ),
    (
        "its version alone is put back",
        at_attempt_of(COMMITTED - 1),
        {Kind.TABLE_BEHIND, Kind.PARTLY_VISIBLE, Kind.WRONG_COUNT},
    ),
    (
        "all tables are gone",
        changed("DROP TABLE count", "DROP TABLE latest", "DROP TABLE transactional_states"),
        {Kind.TABLE_BEHIND},
    ),
]
