"""A table's age: checkpoints, a log that stays short, and what must not be taken for the newest version."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, PostCommitHookProperties
from pyspark.sql import SparkSession

import state.delta.log.log
from state.delta.log.log import LogUpkeep
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from tests.contract.states import OWNER, CommittedMapState, Place, content, counts
from transactional.errors import ConfigError, Fenced


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


@pytest.fixture(autouse=True)
def nothing_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state.delta.log.log, "LOG_KEPT_S", -10)


def opened(place: Place, layout: str = "merge", **properties: str) -> DeltaMapState:
    settings = {"delta.checkpointInterval": "5", "transactional.logCommits": "10", **properties}
    words = CommittedMapState(place.folder / "t", "word string", "count long", layout=layout, properties=settings)
    words.open(OWNER, place.txids.__getitem__)
    return words


def counted(words: DeltaMapState, place: Place, first: int, last: int) -> None:
    for txid in range(first, last + 1):
        words.merge(place.attempt(txid, txid), counts({"dog": 1}))


def versions(words: DeltaMapState, ending: str) -> list[int]:
    log = Path(words.location.uri, "_delta_log")
    return sorted(int(path.name.split(".")[0]) for path in log.glob(f"[0-9]*.{ending}"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_the_log_of_a_table_stays_short(place: Place, layout: str) -> None:
    words = opened(place, layout)
    counted(words, place, 1, 40)
    commits, checkpoints = versions(words, "json"), versions(words, "checkpoint.parquet")
    assert commits == list(range(commits[0], commits[-1] + 1))
    assert 10 <= len(commits) <= 20
    assert 2 <= len(checkpoints) <= 4
    assert commits[0] == checkpoints[0]
    assert content(words) == {"dog": 40}
    again = opened(place, layout)
    counted(again, place, 41, 52)
    assert content(again) == content(DeltaMapState(place.folder / "t", "word string", "count long")) == {"dog": 52}
    assert DeltaTable(words.location.uri).transaction_version(OWNER) == 52


class Held:
    """Checkpoints that are not written before they may."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.gate, self.began, self.fails = threading.Event(), threading.Event(), False
        write = DeltaTable.create_checkpoint

        def held(table: DeltaTable) -> None:
            self.began.set()
            self.gate.wait()
            if self.fails:
                raise OSError("No space left on device")
            write(table)

        patch.setattr(DeltaTable, "create_checkpoint", held)


def looked_after(words: DeltaMapState, place: Place, first: int, last: int) -> None:
    """As `counted`, of a state that does not wait for what is done beside the transactions."""
    for txid in range(first, last + 1):
        words.merge(place.attempt(txid, txid), counts({"dog": 1}))
        words.parts.maintenance.maintain(place.attempt(txid, txid).txid, lambda: True)


def alone(place: Place, layout: str = "merge") -> DeltaMapState:
    """A state of which nothing is waited for."""
    properties = {"delta.checkpointInterval": "5", "transactional.logCommits": "5"}
    words = DeltaMapState(place.folder / "t", "word string", "count long", layout=layout, properties=properties)
    words.open(OWNER, place.txids.__getitem__)
    return words


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_transactions_continue_while_a_checkpoint_is_written(
    place: Place, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the version of its time; the log is cleaned up by it afterwards, between two transactions."""
    held, words = Held(monkeypatch), alone(place, layout)
    looked_after(words, place, 1, 6)
    assert held.began.wait(60)
    looked_after(words, place, 7, 40)
    assert versions(words, "checkpoint.parquet") == []
    assert versions(words, "json")[0] == 0
    held.gate.set()
    words.parts.maintenance.finish(lambda: True)
    [checkpoint] = versions(words, "checkpoint.parquet")
    assert 5 <= checkpoint <= 7
    assert versions(words, "json")[0] == checkpoint
    looked_after(words, place, 41, 60)
    words.parts.maintenance.finish(lambda: True)
    assert versions(words, "json")[0] > 40
    assert content(words) == content(DeltaMapState(place.folder / "t", "word string", "count long")) == {"dog": 60}


def test_a_checkpoint_that_can_not_be_written_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, words = Held(monkeypatch), alone(place)
    held.gate.set()
    held.fails = True
    looked_after(words, place, 1, 12)
    words.parts.maintenance.finish(lambda: True)
    assert "could not be maintained, it will be tried again: " in caplog.text
    assert versions(words, "checkpoint.parquet") == []
    held.fails = False
    looked_after(words, place, 13, 14)
    words.parts.maintenance.finish(lambda: True)
    assert len(versions(words, "checkpoint.parquet")) == 1


def test_a_late_checkpoint_of_who_was_replaced_does_no_harm(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    held, late = Held(monkeypatch), alone(place)
    looked_after(late, place, 1, 6)
    assert held.began.wait(60)
    new = opened(place)
    monkeypatch.undo()
    for txid in range(7, 40):
        new.merge(place.attempt(txid, txid + 100), counts({"dog": 1}))
    held.gate.set()
    late.parts.maintenance.finish(lambda: True)
    with pytest.raises(Fenced):
        late.merge(place.attempt(7, 7), counts({"dog": 1}))
    assert content(new) == content(DeltaMapState(place.folder / "t", "word string", "count long")) == {"dog": 39}


def test_no_transaction_makes_a_checkpoint_or_deletes(place: Place) -> None:
    properties = {"delta.checkpointInterval": "5"}
    words = DeltaMapState(place.folder / "t", "word string", "count long", layout="log", properties=properties)
    words.open(OWNER, place.txids.__getitem__)
    counted(words, place, 1, 12)
    assert versions(words, "checkpoint.parquet") == []


def test_a_log_that_is_not_to_be_cleaned_is_not(place: Place) -> None:
    words = opened(place, **{"delta.enableExpiredLogCleanup": "false"})
    counted(words, place, 1, 15)
    assert versions(words, "json") == list(range(16))
    assert len(versions(words, "checkpoint.parquet")) == 3


@pytest.mark.parametrize("value", ["0", "many", "-1", "1.5"])
@pytest.mark.parametrize("name", ["transactional.logCommits", "delta.checkpointInterval"])
def test_properties_that_are_no_counts_are_refused(place: Place, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"has the property {name} = '{value}'; it is a number, 1 or more"):
        opened(place, **{name: value})


def test_a_version_is_the_newest_as_long_as_it_is_there_and_no_later_one(place: Place) -> None:
    words = opened(place)
    counted(words, place, 1, 40)
    table = DeltaTable(words.location.uri)
    log, newest, oldest = LogUpkeep(DeltaLocation.parse(words.location.uri), table), table.version(), 40 - 20
    assert log.is_newest(newest)
    for version in (newest - 1, newest + 1, 0, oldest - 10):
        assert not log.is_newest(version)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_who_slept_longer_than_the_log_is_kept_is_fenced(place: Place, layout: str) -> None:
    late = opened(place, layout)
    counted(late, place, 1, 1)
    new = opened(place, layout)
    for txid in range(2, 40):
        new.merge(place.attempt(txid, txid + 100), counts({"dog": 1}))
    assert versions(new, "json")[0] > 10
    with pytest.raises(Fenced):
        late.merge(place.attempt(2, 2), counts({"dog": 1}))
    assert content(late) == content(new) == {"dog": 39}


@pytest.mark.long("one reader: test_a_version_is_the_newest_as_long_as_it_is_there_and_no_later_one")
def test_the_log_is_cleaned_while_others_read(place: Place) -> None:
    words, seen, done = opened(place, "log"), list[Any](), threading.Event()

    def read() -> None:
        reader = DeltaMapState(place.folder / "t", "word string", "count long")
        while not done.is_set():
            seen.append(content(reader)["dog"])

    counted(words, place, 1, 1)
    thread = threading.Thread(target=read)
    thread.start()
    counted(words, place, 2, 60)
    done.set()
    thread.join()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1


def test_other_writers_checkpoints_and_deletions_do_no_harm(place: Place) -> None:
    none = dict.fromkeys(("delta.logRetentionDuration", "delta.deletedFileRetentionDuration"), "interval 0 seconds")
    words = opened(place, "log", **none)
    hooks = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)
    for txid in range(1, 27):
        counted(words, place, txid, txid)
        table = DeltaTable(words.location.uri)
        table.create_write_transaction(
            [], "append", table.schema(), table.metadata().partition_columns, post_commithook_properties=hooks
        )
    assert content(words) == {"dog": 26}
    assert len(versions(words, "json")) < 20


@pytest.mark.spark
@pytest.mark.parametrize("layout", ["merge", "log"])
def test_spark_reads_a_table_whose_log_was_cleaned(place: Place, spark: SparkSession, layout: str) -> None:
    words = opened(place, layout)
    for last in (40, 80):
        counted(words, place, last - 39, last)
        assert versions(words, "json")[0] > last - 20
        table = spark.sql(words.view(f"delta.`{words.location.uri}`")).toArrow()
        assert table.to_pylist() == [{"word": "dog", "count": last}]
