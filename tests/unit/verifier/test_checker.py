"""The independent checker passes every right history, and catches each way to falsify one (seed 004's promises)."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

from state.delta.state import DeltaMapState
from tests.contract.states import content, counts
from tests.unit.histories import COMMITTERS, ID, LATEST, History, copied, make_history
from transactional.errors import Fenced
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import CheckImpossible, Findings, Kind
from verifier.evidence.store import CommittedBatch, Store
from verifier.transactions import check_transactions


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> History:
    return make_history(tmp_path_factory.mktemp("right"))


@pytest.fixture(scope="module")
def right_transactional(tmp_path_factory: pytest.TempPathFactory) -> History:
    return make_history(tmp_path_factory.mktemp("right-transactional"), replays_exactly=True)


@pytest.fixture
def history(right: History, tmp_path: Path) -> History:
    return copied(right, tmp_path / "copy")


# --- right histories ----------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["right", "right_transactional"])
def test_replays_dead_attempts_and_take_overs_are_right(request: pytest.FixtureRequest, kind: str) -> None:
    history: History = request.getfixturevalue(kind)
    report = history.report()
    assert report.findings == ()
    assert report.is_exact
    assert report.checked["transactions"] == 12
    assert report.checked["changes of rows"] > 12
    assert report.checked["compactions"] > 1


def test_a_zombie_that_was_fenced_leaves_a_right_history(history: History) -> None:
    zombie = History(history.folder, txid=history.txid)
    zombie.start()
    zombie.transaction({"cat": 5}, dies_after="batch")
    history.start()
    attempt = TransactionAttempt(TxId(zombie.txid), AttemptId(zombie.attempt_id))
    with pytest.raises(Fenced):
        zombie.states["count"].merge(attempt, counts({"cat": 5}))
    with pytest.raises(Fenced):
        zombie.transaction({"cat": 5})
    history.transaction({"cat": 1})
    assert history.report().findings == ()


def test_a_table_that_is_one_transaction_ahead_is_right(history: History) -> None:
    history.start()
    history.transaction({"cat": 1, "new": 3}, dies_after="tables")
    report = history.report()
    assert report.findings == ()
    assert any("not committed yet" in note for note in report.notes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("component", COMMITTERS)
def test_compaction_checkpoints_vacuum_and_cleaned_logs_are_right(history: History, component: str) -> None:
    table = history.delta(component)
    table.optimize.compact()
    table.create_checkpoint()
    history.start()
    for number in range(4):
        history.transaction({"cat": number, "late": 1})
    table = history.delta(component)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    table.cleanup_metadata()
    report = history.report()
    assert report.findings == ()
    assert f"table of '{component}': its history up to Delta version" in " ".join(report.notes)


def test_what_the_store_has_forgotten_is_noted(history: History) -> None:
    history.sql("DELETE FROM transactional_attempts WHERE txid < 8", "DELETE FROM transactional_fences")
    report = history.report()
    assert report.findings == ()
    assert "the store no longer has transactions 1 to 7: not checked" in report.notes


def test_a_foreign_change_that_was_taken_back_is_noted(history: History) -> None:
    version = history.delta("count").version()
    history.delta("count").update({"count": "count + 1"}, predicate="word = 'cat'")
    history.delta("count").restore(version)
    report = history.report()
    assert report.findings == ()
    assert any("has undone it" in note for note in report.notes)


# --- wrong histories ----------------------------------------------------------------------------------------------

ATTEMPTS = "transactional_attempts"


def lose_a_transaction(history: History) -> None:
    history.sql(f"DELETE FROM {ATTEMPTS} WHERE txid = 8")


def commit_twice(history: History) -> None:
    columns = "topology_id, txid, phase, batch, rows, issued_at_ms, planned_at_ms"
    select = f"SELECT {columns}, 1000 FROM {ATTEMPTS} WHERE txid = 8"
    history.sql(f"INSERT INTO {ATTEMPTS} ({columns}, attempt_id) {select}")


def swap_attempts(history: History) -> None:
    history.sql(
        f"UPDATE {ATTEMPTS} SET txid = -7 WHERE txid = 7",
        f"UPDATE {ATTEMPTS} SET txid = 7 WHERE txid = 8",
        f"UPDATE {ATTEMPTS} SET txid = 8 WHERE txid = -7",
    )


def commit_a_dead_attempt(history: History) -> None:
    history.sql(
        f"UPDATE {ATTEMPTS} SET phase = CASE phase WHEN 'committed' THEN 'failed' ELSE 'committed' END WHERE txid = 3"
    )


def wipe(history: History) -> None:
    history.sql(
        f"DELETE FROM {ATTEMPTS}",
        "DELETE FROM transactional_fences",
        "UPDATE transactional_topologies SET committed_txid = 0, committed_attempt_id = NULL, attempt_id = 0",
    )


def rewind_the_store(history: History) -> None:
    history.sql(
        f"UPDATE {ATTEMPTS} SET phase = 'failed' WHERE txid > 10",
        "UPDATE transactional_topologies SET committed_txid = 10, committed_attempt_id = "
        f"(SELECT attempt_id FROM {ATTEMPTS} WHERE txid = 10)",
    )


def shift(start: int, until: int = 0) -> Callable[[History], None]:
    def change(partitions: list[list[Any]]) -> None:
        partitions[0][2] += start
        partitions[0][3] += until

    return lambda history: history.change_batch(8, change)


def forget_a_partition(history: History) -> None:
    history.change_batch(8, lambda partitions: partitions.pop())


def read_one_more(history: History) -> None:
    def change(partitions: list[list[Any]]) -> None:
        partitions[0][4] += 1

    history.change_batch(12, change)


@pytest.mark.parametrize(
    ("falsify", "expected"),
    [
        (lose_a_transaction, {Kind.TRANSACTION_LOST, Kind.RANGE_GAP, Kind.UNKNOWN_ATTEMPT, Kind.WRONG_COUNT}),
        (commit_twice, {Kind.TRANSACTION_TWICE, Kind.RANGE_OVERLAP}),
        (swap_attempts, {Kind.OUT_OF_ORDER, Kind.RANGE_OVERLAP}),
        (commit_a_dead_attempt, {Kind.WRONG_ATTEMPT}),
        (wipe, {Kind.UNKNOWN_ATTEMPT}),
        (rewind_the_store, {Kind.TABLE_AHEAD}),
        (shift(1), {Kind.RANGE_GAP}),
        (shift(-1), {Kind.RANGE_OVERLAP}),
        (shift(0, 1), {Kind.RANGE_OVERLAP}),
        (shift(0, -1), {Kind.RANGE_GAP}),
        (forget_a_partition, {Kind.RANGE_GAP}),
        (read_one_more, {Kind.WRONG_COUNT}),
    ],
)
def test_a_falsified_store_is_caught(history: History, falsify: Callable[[History], None], expected: set[Kind]) -> None:
    falsify(history)
    assert expected <= history.kinds()


def test_what_was_not_committed_when_the_tables_were_read_is_not_counted(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transaction 12 is replayed from a longer batch between the tables and the store's history."""
    read_one_more(history)
    monkeypatch.setattr(Store, "committed_txid", lambda *_: 11)
    assert Kind.WRONG_COUNT not in history.kinds()


def update_a_row(history: History, component: str) -> None:
    history.delta(component).update({"count": "count + 1"}, predicate="word = 'cat'")


def delete_half_of_a_transaction(history: History, component: str) -> None:
    history.delta(component).delete("word = 'word-12'")


def update_then_go_on(history: History, component: str) -> None:
    """A start would refuse that, so the Delta commit is denied afterwards."""
    log_file = history.log_file(component, history.version_of(component, 10))
    history.change_actions(log_file, lambda actions: [action for action in actions if "txn" not in action])


def restore_an_older_version(history: History, component: str) -> None:
    history.delta(component).restore(history.version_of(component, 9))


def change_a_row_in_its_file(history: History, component: str) -> None:
    with history.changed_file(component) as rows:
        older = next(row for row in rows if row.get("txid", 0) < 12)
        older["count"] += 1


def change_the_size_of_a_file(history: History, component: str) -> None:
    file = Path(history.delta(component).file_uris()[0])
    with pq.ParquetFile(file) as opened:
        rows = opened.read()
    pq.write_table(pa.concat_tables([rows, rows]), file)


def bring_a_row_forward(history: History, component: str) -> None:
    """The statistics of its file don't say so."""
    with history.changed_file(component) as rows:
        rows[0]["txid"] = 999


def break_a_row(history: History, component: str) -> None:
    with history.changed_file(component) as rows:
        rows[0]["prev_txid"] = rows[0]["txid"] + 1


def lose_a_row_of_the_file(history: History, component: str) -> None:
    with history.changed_file(component) as rows:
        rows.remove(next(row for row in rows if row.get("txid", 0) < 12))


def double_a_row_of_the_file(history: History, component: str) -> None:
    with history.changed_file(component) as rows:
        rows.append(rows[0])


def lose_the_last_commits(history: History, component: str) -> None:
    for version in range(history.version_of(component, 10), history.delta(component).version() + 1):
        history.log_file(component, version).unlink()


def lose_a_commit_in_between(history: History, component: str) -> None:
    """The log is as if transaction 8 had never been."""
    first, last = history.version_of(component, 8), history.delta(component).version()
    for version in range(first, last):
        shutil.copy(history.log_file(component, version + 1), history.log_file(component, version))
    history.log_file(component, last).unlink()


def make_a_hole(history: History, component: str) -> None:
    history.log_file(component, history.version_of(component, 8)).unlink()


def write_a_commit_twice(history: History, component: str) -> None:
    last = history.delta(component).version()
    text = history.log_file(component, history.version_of(component, 12)).read_text()
    history.log_file(component, last + 1).write_text(text)


def write_an_older_attempt(history: History, component: str) -> None:
    """A zombie that no fence has kept off."""
    zombie = CommitProperties(app_transactions=[Transaction(f"{ID}/{component}", 2)])
    history.delta(component).update({"count": "count + 1"}, predicate="word = 'cat'", commit_properties=zombie)


def write_an_unknown_attempt(history: History, component: str) -> None:
    other = CommitProperties(app_transactions=[Transaction(f"{ID}/{component}", 10_000)])
    history.delta(component).update({"count": "count"}, predicate="word = 'cat'", commit_properties=other)


def lie_about_a_change(history: History, component: str) -> None:
    """A change of a row that says of itself that it is a compaction."""

    def deny(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for action in actions:
            for word in action.values():
                if "dataChange" in word:
                    word["dataChange"] = False
        return actions

    update_a_row(history, component)
    history.change_actions(history.log_file(component), deny)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("component", ["count", "log"])
@pytest.mark.parametrize(
    ("falsify", "expected"),
    [
        (update_a_row, Kind.FOREIGN_WRITER),
        (delete_half_of_a_transaction, Kind.FOREIGN_WRITER),
        (delete_half_of_a_transaction, Kind.WRONG_COUNT),
        (update_then_go_on, Kind.FOREIGN_WRITER),
        (restore_an_older_version, Kind.FOREIGN_WRITER),
        (change_a_row_in_its_file, Kind.WRONG_COUNT),
        (change_the_size_of_a_file, Kind.FILE_CHANGED),
        (lose_a_row_of_the_file, Kind.WRONG_COUNT),
        (double_a_row_of_the_file, Kind.BROKEN_ROW),
        (lose_the_last_commits, Kind.TABLE_BEHIND),
        (lose_a_commit_in_between, Kind.TRANSACTION_LOST),
        (make_a_hole, Kind.BROKEN_LOG),
        (write_a_commit_twice, Kind.TRANSACTION_TWICE),
        (write_an_older_attempt, Kind.OUT_OF_ORDER),
        (write_an_unknown_attempt, Kind.UNKNOWN_ATTEMPT),
        (lie_about_a_change, Kind.WRONG_COUNT),
    ],
)
def test_a_falsified_table_is_caught(
    history: History, component: str, falsify: Callable[[History, str], None], expected: Kind
) -> None:
    falsify(history, component)
    assert expected in history.kinds()


@pytest.mark.parametrize(
    ("falsify", "expected"),
    [
        (change_a_row_in_its_file, Kind.PARTLY_VISIBLE),
        (lose_a_row_of_the_file, Kind.PARTLY_VISIBLE),
        (lie_about_a_change, Kind.FOREIGN_WRITER),
        (bring_a_row_forward, Kind.PARTLY_VISIBLE),
        (break_a_row, Kind.BROKEN_ROW),
    ],
)
def test_rows_show_it_even_where_nothing_is_counted(
    history: History, falsify: Callable[[History, str], None], expected: Kind
) -> None:
    falsify(history, "count")
    report = verify(history.url, ID, [CheckedTable("count", history.path("count"))])
    assert expected in report.counts


def test_a_compaction_that_says_something_else_is_caught(history: History) -> None:
    """A compaction's app transaction does not excuse other rows."""
    table = history.delta("log")
    until = max(int(json.loads(json.dumps(p))["txid"]) for p in table.partitions()) - 1
    compaction = CommitProperties(app_transactions=[Transaction(f"{ID}/log#compaction", until)])
    table.update({"count": "count + 1"}, predicate=f"txid = {until}", commit_properties=compaction)
    report = verify(history.url, ID, [CheckedTable("log", history.path("log"))])
    assert set(report.counts) == {Kind.BROKEN_ROW}


def test_compactions_of_latest_values_keep_the_latest(right: History) -> None:
    """Of each word the number of the last transaction with it, whatever was compacted; in both layouts."""
    expected = {"cat": 12, "dog": 3, "owl": 2, "cow": 4, "emu": 6, **{f"word-{n}": n for n in range(7, 13)}}
    for name in LATEST:
        assert content(DeltaMapState(right.path(name), "word string", "count long")) == expected
    report = verify(right.url, ID, [CheckedTable("latest-log", right.path("latest-log"))])
    assert (report.is_exact, report.checked["compactions"] > 2) == (True, True)


def test_a_compaction_that_keeps_an_older_value_is_caught(history: History) -> None:
    """The rows that it replaced are still there: the value of the earlier of two transactions was taken."""
    log_file = next(
        file
        for file in sorted(Path(history.path("latest-log"), "_delta_log").glob("*.json"), reverse=True)
        if f"{ID}/latest-log#compaction" in file.read_text()
    )
    with history.changed_file("latest-log", log_file) as rows:
        [cat] = [row for row in rows if row["word"] == "cat"]
        cat["count"] -= 1
    report = verify(history.url, ID, [CheckedTable("latest-log", history.path("latest-log"))])
    assert set(report.counts) == {Kind.BROKEN_ROW}
    assert "a compaction, key cat" in report.findings[0].where


def test_a_compaction_that_loses_a_key_is_caught(history: History) -> None:
    """One whose files are all there: nothing else shows it where nothing is counted."""
    log_file = next(
        file
        for file in sorted(Path(history.path("latest-log"), "_delta_log").glob("*.json"), reverse=True)
        if f"{ID}/latest-log#compaction" in file.read_text()
    )
    with history.changed_file("latest-log", log_file) as rows:
        rows.remove(next(row for row in rows if row["word"] == "dog"))
    report = verify(history.url, ID, [CheckedTable("latest-log", history.path("latest-log"))])
    assert set(report.counts) == {Kind.BROKEN_ROW}
    assert "a compaction, key dog" in report.findings[0].where


def test_a_compaction_is_checked_by_what_the_table_had_declared_then(history: History) -> None:
    """A rewind to before its first row takes back how rows are combined, too."""
    history.delta("log").restore(0)
    report = verify(history.url, ID, [CheckedTable("log", history.path("log"))])
    assert [each for each in report.findings if each.kind is Kind.BROKEN_ROW] == []
    assert report.checked["compactions"] > 1


@pytest.mark.parametrize(("replays_exactly", "expected"), [(True, {Kind.RANGE_GAP: 1}), (False, {})])
def test_a_gap_up_to_the_log_s_start_is_excused_for_an_opaque_spout_alone(
    right: History, right_transactional: History, *, replays_exactly: bool, expected: dict[Kind, int]
) -> None:
    """A transactional spout may not go on where the source has lost something."""
    with closing(Store((right_transactional if replays_exactly else right).url)) as store:
        whole = store.history(ID)
    before, after = (
        CommittedBatch(txid, attempt_id, {("words", 0): (start, start + 10, 10)}, 10)
        for txid, attempt_id, start in ((1, 2, 0), (2, 3, 15))
    )
    history = replace(whole, committed_txid=2, committed_attempt_id=3, committed=(before, after), in_flight={})
    findings = Findings()
    check_transactions(history, findings, log_starts={("words", 0): 15})
    assert findings.report().counts == expected
    assert any("[10, 15) is in no transaction" in note for note in findings.report().notes) != replays_exactly
    # A gap behind the log's start is one for both.
    findings = Findings()
    check_transactions(history, findings, log_starts={("words", 0): 14})
    assert findings.report().counts == {Kind.RANGE_GAP: 1}


def test_a_stale_copy_of_a_table_is_caught(right: History, history: History, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(history.path("count"), old)
    history.start()
    history.transaction({"cat": 1})
    shutil.rmtree(history.path("count"))
    shutil.copytree(old, history.path("count"))
    report = history.report()
    assert {finding.where for finding in report.findings if finding.kind is Kind.TABLE_BEHIND} == {"table of 'count'"}


# --- questions that can't be answered -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["2", "4"])
def test_a_table_of_another_layout_is_not_checked(history: History, layout: str) -> None:
    properties = {"transactional.schemaVersion": layout}
    DeltaTable(history.path("count")).alter.set_table_properties(properties, raise_if_not_exists=False)
    with pytest.raises(CheckImpossible, match=f"table of .count. has version {layout} of the layout of states"):
        history.report()


@pytest.mark.parametrize(
    ("url", "topology_id", "table", "expected"),
    [
        ("sqlite:////there/is/none.db", ID, None, "there is no store at /there/is/none.db"),
        (None, "wrods", None, "there is no topology 'wrods' in the store; it has words"),
        ("mysql://host/db", ID, None, "a store is sqlite:///… or postgresql://…"),
        (None, ID, CheckedTable("count", "count", counts="cuont"), "no value column 'cuont'"),
    ],
)
def test_a_wrong_question_is_reported(
    history: History, url: str | None, topology_id: str, table: CheckedTable | None, expected: str
) -> None:
    tables = [CheckedTable("count", history.path("count"), counts=table.counts)] if table else []
    with pytest.raises(CheckImpossible, match=re.escape(expected)):
        verify(url or history.url, topology_id, tables)
