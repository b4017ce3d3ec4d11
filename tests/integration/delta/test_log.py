"""The log layout beyond the contract: compactions and what they must not change, lookups, one way of combining,
readers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow import parquet
from pyspark.sql import SparkSession

import state.delta.opening
import state.delta.read.table_reader
import state.delta.state
import state.delta.tables.lookup
import state.delta.upkeep.table_upkeep
from state.delta.open_table import OpenTable, open_segments
from state.delta.opening import to_segment_columns
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from state.delta.upkeep.compactor import Compactor
from state.delta.write.engine_commits import by_delta_rs
from state.delta.write.loaded_table import LoadedTable
from state.fence import WriteRefused
from tests.contract.states import OWNER, CommittedMapState, Place, content, counts, look_up_always
from tests.integration.delta import compacting
from transactional.core.ports import Partials
from transactional.errors import ConfigError, Fenced, OperatingError, ProtocolError, SchemaMismatch, SumOverflow
from transactional.model.arrow import arrow_type
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.testing.states.values import KEYS

NEVER = LogLayout(compact_after=None)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, layout: Any = NEVER, kind: type[DeltaMapState] = CommittedMapState, **options: Any) -> Any:
    state = kind(place.folder / "t", "word string", options.pop("values", "count long"), layout=layout, **options)
    state.open(OWNER, place.txids.__getitem__)
    return state


def txids(state: DeltaMapState) -> list[int]:
    """The txids of the table's rows, as any reader sees them."""
    table = QueryBuilder().register("t", DeltaTable(state.location.uri)).execute("SELECT DISTINCT txid FROM t")
    return sorted(pa.table(table.read_all()).column(0).to_pylist())


def merged(state: Any, place: Place, first: int, last: int) -> None:
    """Transactions that count the cat, and a word of their own."""
    for txid in range(first, last + 1):
        state.merge(place.attempt(txid, txid), counts({"cat": 1, f"word {txid}": 1}))


def after(last: int) -> dict[str, int]:
    """What is in the table after `merged(…, 1, last)`."""
    return {"cat": last, **{f"word {txid}": 1 for txid in range(1, last + 1)}}


class TestCompactions:
    @pytest.mark.parametrize("untold", [slice(None), slice(1, 3)], ids=["all", "some"])
    def test_count_files_of_writers_that_tell_no_statistics(self, place: Place, untold: slice) -> None:
        words = opened(place)
        merged(words, place, 1, 4)
        for entry in sorted(Path(words.location.uri, "_delta_log").glob("*.json"))[1:][untold]:
            actions = [json.loads(line) for line in entry.read_text("utf-8").splitlines()]
            for action in actions:
                action.get("add", {}).pop("stats", None)
            entry.write_text("\n".join(map(json.dumps, actions)), "utf-8")
        words = opened(place)
        words.compact()
        assert txids(words) == [3, 4]
        assert content(words) == after(4)

    def test_leave_the_newest_transaction_to_be_replaced(self, place: Place) -> None:
        words = opened(place)
        merged(words, place, 1, 3)
        words.compact()
        assert txids(words) == [2, 3]
        words.merge(place.attempt(3, 4), counts({"dog": 1}))
        assert content(words) == {**after(2), "dog": 1}
        assert content(words, committed_txid=2) == after(2)

    def test_leave_a_base_in_the_order_in_which_its_rows_go(self, place: Place) -> None:
        state = DeltaMapState(
            place.folder / "t", "n long, at timestamp", "count long", layout=NEVER, expires="at", after="1 day"
        )
        state.open(OWNER, place.txids.__getitem__)
        rng, time = random.Random(7), pa.timestamp("us", tz="UTC")
        for txid in (1, 2, 3):
            times = pa.array([rng.randrange(10**6) * 10**6 for _ in range(500)]).cast(time)
            rows = pa.table({"n": list(range(500)), "at": times, "count": [1] * 500})
            state.declared.begin(place.attempt(txid, txid), BatchFacts(0))
            state.merge(place.attempt(txid, txid), Partials({"count": "sum"}, rows))
        state.compact()
        (file,) = [uri for uri in DeltaTable(state.location.uri).file_uris() if "txid=2/" in uri]
        base = parquet.read_table(file, partitioning=None)
        assert base["at"].to_pylist() == sorted(base["at"].to_pylist())

    def test_take_the_runs_in_between_by_their_sizes(self, place: Place) -> None:
        words = opened(place, LogLayout(compact_after=2))
        seen = []
        for txid in range(1, 14):
            merged(words, place, txid, txid)
            assert content(words) == after(txid)
            seen.append(txids(words))
        assert max(map(len, seen)) <= 6
        assert [1, 2] in seen

    def test_are_reported_with_what_they_write(self, place: Place, caplog: Any) -> None:
        with caplog.at_level("INFO", logger="state.delta.upkeep.compactor"):
            merged(opened(place, LogLayout(compact_after=2)), place, 1, 3)
        assert (
            "2 segments with 4 rows up to transaction 2 compacted into 3 rows; 3 rows written by compactions for 6"
            in caplog.text
        )

    def test_that_fail_are_warned_of_and_change_nothing(
        self, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: Any
    ) -> None:
        def fail(self: Compactor, *_: Any) -> None:
            raise OSError("no space left")

        monkeypatch.setattr(Compactor, "write_compaction", fail)
        words = opened(place, LogLayout(compact_after=1))
        merged(words, place, 1, 3)
        assert content(words) == after(3)
        assert "could not be maintained" in caplog.text
        with pytest.raises(OperatingError, match="could not be compacted: no space left"):
            words.compact()

    def test_what_was_before_is_not_reported_wrongly(self, place: Place) -> None:
        words = opened(place)
        merged(words, place, 1, 4)
        assert content(words, committed_txid=1) == after(1)
        words.compact()
        with pytest.raises(OperatingError, match="up to transaction 3: the rows before transaction 2 are no longer"):
            words.read(TxId(1))

    def test_of_two_writers_one_is_refused(self, place: Place) -> None:
        merged(opened(place), place, 1, 4)
        first, second = (handle_of(place) for _ in range(2))
        first.upkeep.compact(TxId(4))
        with pytest.raises(WriteRefused, match="another writer's Delta commit came between"):
            second.upkeep.compact(TxId(3))
        assert content(opened(place)) == after(4)

    def test_of_a_writer_that_was_taken_over_are_refused(self, place: Place) -> None:
        old = opened(place)
        merged(old, place, 1, 3)
        handle = handle_of(place)
        new = opened(place)
        new.merge(place.attempt(3, 7), counts({"dog": 5}))
        with pytest.raises(WriteRefused, match="another writer's Delta commit came between"):
            handle.upkeep.compact(TxId(3))
        assert content(new) == {**after(2), "dog": 5}

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("write", ["merge", "empty", "fence", "replay"])
    def test_between_the_check_and_the_write_of_a_transaction_do_not_disturb(self, place: Place, write: str) -> None:
        merged(opened(place), place, 1, 4)

        def compact() -> None:
            handle_of(place).upkeep.compact(TxId(4))

        words = opened(place, NEVER, interrupted(compact))
        if write == "fence":
            place.fence(words, 4, 9)
        elif write == "replay":
            words.merge(place.attempt(4, 9), counts({}))
        else:
            words.merge(place.attempt(5, 9), counts({"cat": 1} if write == "merge" else {}))
        assert words.version() == 9
        assert txids(words)[0] == 3
        expected = after(3) if write == "replay" else {**after(4), "cat": 5 if write == "merge" else 4}
        assert content(words) == expected


@pytest.mark.long("crashes in one process: tests/simulation, test_background_compaction")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(3))
def test_a_process_that_is_killed_leaves_whole_transactions_and_whole_compactions(tmp_path: Path, seed: int) -> None:
    chance, last = random.Random(seed), 0
    for _ in range(2):
        command = [sys.executable, "-m", "tests.integration.delta.compacting", str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(chance.randint(2, 9)):
                process.stdout.readline()
            # Somewhere in the transaction or in its compaction.
            threading.Event().wait(chance.random() * 0.05)
            process.kill()
        state = compacting.opened(tmp_path)
        version = state.version()
        assert version is not None
        assert version > last
        last = int(version)
        assert content(state) == after(last)


def handle_of(place: Place) -> OpenTable:
    """A table as another process has it."""
    columns = to_segment_columns(DeltaMapState("t", "word string", "count long").declared.columns)
    return open_segments(LoadedTable(DeltaLocation.parse(place.folder / "t"), OWNER, columns), "t")


def interrupted(meanwhile: Callable[[], object]) -> type[DeltaMapState]:
    """A state during whose first write something else happens, after it has checked the version."""

    class Interrupted(DeltaMapState):
        def _confirm(self, attempt_id: Any, write: Callable[[OpenTable], None]) -> None:
            meanwhile()
            super()._confirm(attempt_id, write)

    return Interrupted


class TestValues:
    @pytest.mark.sampled(2)
    @pytest.mark.parametrize("sorted_rows_min", [0, 100])
    @pytest.mark.parametrize("layout", [NEVER, LogLayout(compact_after=1)])
    def test_latest_ones_are_looked_up_in_every_run(
        self, place: Place, layout: LogLayout, sorted_rows_min: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state.delta.read.table_reader, "CACHED_ROWS_MAX", 0)
        monkeypatch.setattr(state.delta.tables.lookup, "SORTED_ROWS_MIN", sorted_rows_min)
        words = opened(place, layout, values="count long, note string")
        words.put(place.attempt(1, 1), {("b",): (1, "x"), (None,): (0, "x"), ("a",): (1, "x")})
        words.put(place.attempt(2, 2), {("a",): (2, None)})
        words.put(place.attempt(3, 3), {("c",): (3, "y")})
        found = words.get(place.attempt(4, 4), [("z",), ("c",), (None,), ("b",), ("a",), ("0",)])
        assert found == {("a",): (2, None), ("b",): (1, "x"), ("c",): (3, "y"), (None,): (0, "x")}
        assert words.get(place.attempt(3, 5), [("a",), ("c",)]) == {("a",): (2, None)}
        assert content(words) == {"a": (2, None), "b": (1, "x"), "c": (3, "y"), None: (0, "x")}

    @pytest.mark.parametrize("type_", KEYS)
    def test_are_found_in_sorted_copies_by_keys_of_every_type(
        self, place: Place, type_: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state.delta.read.table_reader, "CACHED_ROWS_MAX", 0)
        monkeypatch.setattr(state.delta.tables.lookup, "SORTED_ROWS_MIN", 0)
        words = DeltaMapState(place.folder / "t", f"K {type_}", "count long", layout="log")
        words.open(OWNER, place.txids.__getitem__)
        rows = {(key,): (number,) for number, key in enumerate([*KEYS[type_], None])}
        words.put(place.attempt(1, 1), rows)
        assert words.get(place.attempt(2, 2), list(rows)) == rows

    @pytest.mark.parametrize("is_always_looked_up", [False, True])
    def test_are_found_before_and_after_a_compaction(
        self, place: Place, *, is_always_looked_up: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By one handle, whose copies are of files that a compaction has replaced under the same txid."""
        base = 10 if is_always_looked_up else state.delta.tables.lookup.SORTED_ROWS_MIN + 10
        if is_always_looked_up:
            look_up_always(monkeypatch)
        words = opened(place)
        first = pa.table({"word": [f"{number:06}" for number in range(base)], "count": pa.array(range(base))})
        words.merge(place.attempt(1, 1), Partials({"count": "last"}, first))
        words.put(place.attempt(2, 2), {("000001",): (-2,), ("new 2",): (2,)})
        words.put(place.attempt(3, 3), {("000002",): (-3,), ("new 3",): (3,)})
        asked = ["000000", "000001", "000002", "new 2", "new 3", "absent"]
        before = {"000000": 0, "000001": -2, "000002": 2, "new 2": 2}
        assert found_in(words, place.attempt(3, 4), asked) == before
        after_3 = {**before, "000002": -3, "new 3": 3}
        assert found_in(words, place.attempt(4, 5), asked) == after_3
        words.compact()
        assert txids(words) == [2, 3]
        assert found_in(words, place.attempt(4, 6), asked) == after_3
        assert found_in(words, place.attempt(3, 7), asked) == before
        words.put(place.attempt(4, 8), {("new 4",): (4,)})
        words.compact()
        assert txids(words) == [3, 4]
        assert found_in(words, place.attempt(5, 9), [*asked, "new 4"]) == {**after_3, "new 4": 4}

    @pytest.mark.parametrize(("type_", "large"), [("long", 2**62), ("decimal(38,0)", Decimal(9 * 10**37))])
    def test_whose_sum_does_not_fit_are_an_error_also_where_others_have_written_them(
        self, place: Place, type_: str, large: Any
    ) -> None:
        """Here it is planted that such rows are let through."""
        words = opened(place, values=f"total {type_}")
        column = pa.array([large], arrow_type(type_))
        for txid in (1, 2, 3):
            writer: Any = words.open_table.writer
            writer.admits = lambda *_: True
            words.merge(
                place.attempt(txid, txid), Partials({"total": "sum"}, pa.table({"word": ["a"], "total": column}))
            )
        view = words.view("t", dialect="datafusion")
        for read in (words.read, words.compact):
            with pytest.raises(OperatingError, match=r"(?i)out of range|overflow"):
                read()
        with pytest.raises(Exception, match=r"(?i)out of range|overflow"):
            seen(words, view)
        with pytest.raises(SumOverflow):
            words.open_table.reader.search(TxId(4), pa.table({"word": ["a"]}))
        assert words.read(TxId(1)).to_pydict() == {"word": ["a"], "total": [large]}

    def test_that_can_not_be_read_while_they_are_written_are_refused(self, place: Place) -> None:
        """On one processor an error of a query comes out of its stream of rows, and is of no class of its own."""
        version = opened(place).open_table.loaded
        with pytest.raises(WriteRefused, match="C Data interface error: out of range"), by_delta_rs(version):
            raise Exception("C Data interface error: out of range")
        with pytest.raises(ZeroDivisionError), by_delta_rs(version):
            raise ZeroDivisionError

    def test_are_combined_in_one_way_for_ever(self, place: Place) -> None:
        words = opened(place)
        merged(words, place, 1, 1)
        with pytest.raises(ProtocolError, match=r"was written with {'count': 'sum'}, but now comes {'count': 'last'}"):
            words.put(place.attempt(2, 2), {("a",): (1,)})
        assert words.version() == 1
        words.put(place.attempt(2, 2), {})
        assert content(words) == after(1)

    def test_a_first_writer_that_was_taken_over_is_refused(self, place: Place) -> None:
        place.fence(opened(place), 0, 1)

        def take_over() -> None:
            place.fence(opened(place), 0, 5)

        old = opened(place, NEVER, interrupted(take_over))
        place.attempt(1, 2)
        with pytest.raises(Exception, match="was written by attempt 5, after 2"):
            merged_as(old, place, 2)
        assert content(opened(place)) == {}


def found_in(words: DeltaMapState, attempt: TransactionAttempt, asked: list[str]) -> dict[str, int]:
    """What a bolt is told of some words in an attempt."""
    return {word: count for (word,), (count,) in words.get(attempt, [(word,) for word in asked]).items()}


def merged_as(state: Any, place: Place, attempt_id: int) -> None:
    state.merge(place.attempt(1, attempt_id), counts({"a": 1}))


class TestLayouts:
    def test_a_table_keeps_the_layout_it_has(self, place: Place) -> None:
        merged(opened(place), place, 1, 2)
        again = opened(place, "auto")
        merged(again, place, 3, 3)
        assert txids(again) == [1, 2, 3]
        with pytest.raises(SchemaMismatch, match="has the log layout, but layout='merge' was requested"):
            opened(place, "merge")

    def test_a_merged_table_is_turned_into_a_log_with_its_next_transaction(self, place: Place) -> None:
        merged(opened(place, "merge"), place, 1, 3)
        words = opened(place)
        words.merge(place.attempt(3, 4), counts({"dog": 1}))
        assert not DeltaTable(words.location.uri).metadata().partition_columns, "a replay needs the previous values"
        words.merge(place.attempt(4, 5), counts({"dog": 1}))
        words.merge(place.attempt(4, 6), counts({"cat": 1}))
        assert content(words) == {**after(2), "cat": 3, "dog": 1}
        assert txids(words) == [3, 4]
        assert content(words, committed_txid=3) == {**after(2), "dog": 1}
        assert content(opened(place, "auto")) == content(words)

    def test_an_empty_table_is_turned_into_a_log(self, place: Place) -> None:
        opened(place, "merge")
        words = opened(place)
        merged(words, place, 1, 2)
        assert content(words) == after(2)
        assert txids(words) == [1, 2]

    def test_no_table_is_turned_by_a_coordinator_that_was_taken_over(self, place: Place) -> None:
        merged(opened(place, "merge"), place, 1, 2)
        old = opened(place, NEVER, interrupted(lambda: place.fence(opened(place, "merge"), 2, 9)))
        with pytest.raises(Fenced):
            old.merge(place.attempt(3, 3), counts({"cat": 1}))
        assert not DeltaTable(old.location.uri).metadata().partition_columns
        assert content(opened(place, "merge")) == after(2)

    def test_a_large_merged_table_is_reported(self, place: Place, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
        merged(opened(place, "auto"), place, 1, 3)
        monkeypatch.setattr(state.delta.opening, "MERGED_ROWS_TARGET", 3)
        opened(place, "merge")
        assert "layout='log'" not in caplog.text
        opened(place, "auto")
        assert "has 4 rows, and a merge rewrites every file that has a key of the batch; layout='log'" in caplog.text

    def test_is_read_without_being_opened(self, place: Place) -> None:
        merged(opened(place), place, 1, 2)
        assert content(DeltaMapState(place.folder / "t", "word string", "count long")) == after(2)

    def test_own_names_are_kept(self, place: Place) -> None:
        words = opened(place, LogLayout(compact_after=1), columns={"txid": "_Tx"})
        merged(words, place, 1, 5)
        assert content(words) == after(5)
        assert DeltaTable(words.location.uri).metadata().partition_columns == ["_Tx"]

    def test_old_files_are_deleted(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state.delta.upkeep.table_upkeep, "VACUUM_INTERVAL", 10)
        properties = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        words = opened(place, LogLayout(compact_after=5), properties=properties)
        merged(words, place, 1, 10)
        files = list(Path(words.location.uri).rglob("*.parquet"))
        assert len(files) == len(DeltaTable(words.location.uri).file_uris())
        assert len(list(Path(words.location.uri).glob("txid=*"))) == len(files)
        merged(words, place, 11, 11)
        assert content(words) == after(11)


class TestReaders:
    @pytest.mark.parametrize("layout", [NEVER, LogLayout(compact_after=2), "merge"])
    def test_see_one_row_per_key_through_a_view(self, place: Place, layout: Any) -> None:
        words = opened(place, layout)
        merged(words, place, 1, 5)
        assert seen(words, words.view("t", dialect="datafusion")) == after(5)
        assert seen(words, words.view("t", dialect="datafusion", committed_txid=TxId(4))) == after(4)

    def test_need_a_first_row_and_a_known_dialect(self, place: Place) -> None:
        words = opened(place)
        with pytest.raises(OperatingError, match="is empty: how its rows are combined"):
            words.view("t")
        with pytest.raises(ConfigError, match="dialect 'duckdb' is not known; there are datafusion, spark"):
            words.view("t", dialect="duckdb")

    @pytest.mark.spark
    @pytest.mark.parametrize("how", ["sum", "last"])
    def test_see_the_same_on_spark(self, place: Place, spark: SparkSession, how: str) -> None:
        words = opened(place)
        for txid in range(1, 4):
            words.merge(place.attempt(txid, txid), Partials({"count": how}, counts({"cat": txid, str(txid): 1}).table))
        spark.sql(f"CREATE OR REPLACE TEMP VIEW words AS {words.view(f'delta.`{words.location.uri}`')}")
        rows = spark.table("words").toArrow().to_pylist()
        assert {row["word"]: row["count"] for row in rows} == content(words)


def seen(state: DeltaMapState, view: str) -> dict[Any, Any]:
    """What a reader without the state sees."""
    rows = pa.table(QueryBuilder().register("t", DeltaTable(state.location.uri)).execute(view).read_all())
    return dict(zip(rows["word"].to_pylist(), rows["count"].to_pylist(), strict=True))
