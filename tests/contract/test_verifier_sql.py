"""The independent checker over states in SQLite and PostgreSQL: right ones pass, each falsified one is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.conftest import DATABASES
from tests.integration.postgres import url_of
from tests.unit.histories import ID, go_through_everything
from tests.unit.sql_histories import COMMITTED, FALSIFIED, SqlHistory
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from verifier.checker import verify
from verifier.evidence.findings import CheckImpossible, Kind
from verifier.evidence.store import Store
from verifier.rows import RowColumns
from verifier.sql_tables import CheckedSqlTable


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> SqlHistory:
    history = SqlHistory(tmp_path_factory.mktemp("right"))
    go_through_everything(history)
    history.close()
    return history


@pytest.fixture(params=DATABASES)
def history(request: pytest.FixtureRequest, right: SqlHistory, tmp_path: Path) -> Iterator[SqlHistory]:
    """A right history, its states in each kind of database."""
    if request.param == "sqlite":
        history = replace(right, folder=tmp_path / "copy", states={}, positions=dict(right.positions))
        shutil.copytree(right.folder, history.folder)
    else:
        folder, schema = request.getfixturevalue("postgres_sockets"), request.getfixturevalue("postgres_schema")
        history = SqlHistory(tmp_path, database=url_of(folder, schema))
        go_through_everything(history)
    with closing(history):
        yield history


def test_replays_dead_attempts_and_take_overs_are_right(history: SqlHistory) -> None:
    report = history.report()
    assert report.findings == ()
    assert (report.checked["transactions"], report.checked["rows"]) == (COMMITTED, 2 * 11)


def test_a_transactional_spout_s_history_is_right(tmp_path: Path) -> None:
    with closing(SqlHistory(tmp_path, replays_exactly=True)) as history:
        go_through_everything(history)
        assert history.report().findings == ()


@pytest.mark.parametrize("dies_after", ["count", "tables"])
def test_a_table_that_is_one_transaction_ahead_is_right(history: SqlHistory, dies_after: str) -> None:
    history.start()
    history.transaction({"cat": 5}, dies_after=dies_after)
    assert history.report().findings == ()
    history.start()
    assert history.report().findings == ()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("falsify", "expected"), [each[1:] for each in FALSIFIED], ids=[each[0] for each in FALSIFIED])
def test_a_falsified_table_is_caught(
    history: SqlHistory, falsify: Callable[[SqlHistory], None], expected: set[Kind]
) -> None:
    falsify(history)
    assert history.kinds() == expected


def test_what_the_store_has_forgotten_is_noted(history: SqlHistory) -> None:
    """A table that nothing was written to for long: its last attempt is older than all that are known."""
    history.sql(f"DELETE FROM transactional_attempts WHERE txid < {COMMITTED}", "DELETE FROM transactional_fences")
    history.change("UPDATE transactional_states SET attempt_id = 2 WHERE table_name = 'latest'")
    report = history.report(["latest"])
    assert report.findings == ()
    assert "table of 'latest': its last writer is an attempt that the store has deleted" in report.notes


def test_a_column_that_is_no_count_of_the_table_is_reported(history: SqlHistory) -> None:
    table = CheckedSqlTable("latest", history.states_url, "latest", counts="cuont")
    with pytest.raises(CheckImpossible, match="no value column 'cuont' that could count; its value columns are count"):
        verify(history.url, ID, [table])


def test_a_table_of_another_layout_is_not_checked(history: SqlHistory) -> None:
    history.change("UPDATE transactional_states SET layout = 2 WHERE table_name = 'latest'")
    with pytest.raises(CheckImpossible, match="table 'latest' has version 2 of the layout of states"):
        history.report()


def test_renamed_columns_need_the_topology(history: SqlHistory) -> None:
    history.change(
        'ALTER TABLE latest RENAME COLUMN "txid" TO "at"',
        "UPDATE transactional_states SET columns = replace(columns, ' txid long', ' at long')",
    )
    with pytest.raises(CheckImpossible, match=r"has no column 'txid'; its columns are .*: does its state"):
        history.report(["latest"])
    columns = RowColumns(("word",), ("count",), {"count": "prev_count"}, txid="at")
    assert verify(history.url, ID, [CheckedSqlTable("latest", history.states_url, "latest", columns)]).is_exact


def test_rows_of_their_own_are_counted_by_transaction(history: SqlHistory) -> None:
    """`*` says that each record made a row, which is not so here: words come again."""
    columns = RowColumns(("word",), ("count",), {"count": "prev_count"})
    table = CheckedSqlTable("count", history.states_url, "count", columns, counts="*")
    assert set(verify(history.url, ID, [table]).counts) == {Kind.WRONG_COUNT}


def test_a_database_that_is_not_there_is_reported_and_not_made(tmp_path: Path, right: SqlHistory) -> None:
    table = CheckedSqlTable("count", f"sqlite:///{tmp_path}/none.db", "count")
    with pytest.raises(CheckImpossible, match=r"there is no database of 'count' at .*none\.db"):
        verify(right.url, ID, [table])
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_read_with_its_version_at_one_moment(history: SqlHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology that goes on while it is checked makes nothing look wrong."""
    history.start()
    read = Store.history

    def go_on(store: Store, topology_id: str) -> object:
        history.transaction({"cat": 2, "gnu": 1})
        history.transaction({"cat": 2, "gnu": 1})
        return read(store, topology_id)

    monkeypatch.setattr(Store, "history", go_on)
    report = history.report()
    assert report.findings == ()
    with closing(SqlCoordinatorStore(history.url)) as store:
        assert store.status(ID)[0].committed_txid == COMMITTED + 2
