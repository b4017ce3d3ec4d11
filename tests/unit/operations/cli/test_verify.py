"""`transactional verify` and `transactional doctor` on the command line: what they print, and how they end."""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from tests.unit.command_line import RUN, Command
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.trident import Combiner, Count, TridentTopology

TABLES = '''
"""A topology whose states are in Delta tables."""

from spouts.memory import MemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from transactional.topology.builder import TransactionalTopologyBuilder

def build():
    spout = MemoryTransactionalSpout([[("cat",), ("dog",)], [("cat",)]], "word string", take=1)
    builder = TransactionalTopologyBuilder("animals", "spout", spout)
    builder.set_committer_bolt("count", DeltaMapState("counts", "word").count()).fields_grouping("spout", "word")
    builder.set_committer_bolt("hidden", MemoryMapState("word").count()).fields_grouping("spout", "word")
    return builder.build()
'''


@pytest.fixture
def animals(command: Command) -> Command:
    """A topology that has run, as module `animals`."""
    Path("animals.py").write_text(TABLES)
    sys.modules.pop("animals", None)
    assert command(*RUN, "animals:build", "--journal", "journal").code == 0
    return command


IN_SQL = """
from spouts.memory import MemoryTransactionalSpout
from state.sql.state import SqlMapState
from transactional.topology.builder import TransactionalTopologyBuilder

def build():
    spout = MemoryTransactionalSpout([[("cat",), ("dog",)], [("cat",)]], "word string", take=1)
    builder = TransactionalTopologyBuilder("sqls", "spout", spout)
    state = SqlMapState("sqlite:///states.db", "counts", "word", columns={"txid": "at"})
    builder.set_committer_bolt("count", state.count()).fields_grouping("spout", "word")
    return builder.build()
"""


@pytest.fixture
def sqls(command: Command) -> Command:
    """A topology with its state in SQLite that has run, as module `sqls`."""
    Path("sqls.py").write_text(IN_SQL)
    sys.modules.pop("sqls", None)
    assert command(*RUN, "sqls:build", "--journal", "journal").code == 0
    return command


STREAMS = """
from pathlib import Path
from spouts.memory import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.delta.state import DeltaMapState
from state.sql.state import SqlMapState
from transactional.reliable import TopologyBuilder
from transactional.trident import Count, TridentTopology

ROWS = [[("cat",), ("dog",), ("cat",)], [("cat",)]]

def build(*names):
    topology = TridentTopology("streams")
    states = {"one": DeltaMapState("one"), "two": SqlMapState("sqlite:///states.db", "two")}
    for n, name in enumerate(names or ("one", "two")):
        spout = MemoryTransactionalSpout(ROWS[n:], "word string", take=1 + n)
        stream = topology.new_stream(name, spout).group_by("word")
        stream.persistent_aggregate(states[name], Count(), name=f"c-{name}")
    return topology.build()

def first():
    return build("one")

def spouts(*names):
    builder = TopologyBuilder("spouts")
    for name in names or ("one", "two"):
        builder.set_spout(name, MemoryTransactionalSpout(ROWS, "word string", take=1))
        state = DeltaMapState(f"spouts/{name}", "word")
        builder.set_committer_bolt(f"c-{name}", state.count()).fields_grouping(name, "word")
    return builder.build()

def alone():
    return spouts("one")

def through_a_bolt():
    builder = TopologyBuilder("spouts")
    for name in ("one", "two"):
        builder.set_spout(name, MemoryTransactionalSpout(ROWS, "word string", take=1))
    builder.set_bolt("same", lambda row: tuple(row), output="word string").shuffle_grouping("two")
    state = DeltaMapState("spouts/bolt", "word")
    builder.set_committer_bolt("c-bolt", state.count()).fields_grouping("same", "word")
    return builder.build()
"""


@pytest.fixture
def streams(command: Command) -> Command:
    """Topologies of several streams, each counted into a table of its own, as module `streams`."""
    Path("streams.py").write_text(STREAMS)
    sys.modules.pop("streams", None)
    return command


@pytest.mark.parametrize("name", ["build", "spouts"])
def test_of_several_streams_each_table_counts_its_own(name: str, streams: Command) -> None:
    assert streams(*RUN, f"streams:{name}").code == 0
    done = streams("verify", f"streams:{name}")
    assert (done.code, "not checked, because" in done.out) == (0, False), done.out
    DeltaTable({"build": "one", "spouts": "spouts/one"}[name]).update({"count": "count + 1"}, predicate="word = 'cat'")
    done = streams("verify", f"streams:{name}")
    assert "wrong-count: rows of 'c-one', count, transactions 1 to 3: expected 4, as many as" in done.out
    assert "c-two" not in done.out


def test_a_count_behind_a_bolt_is_of_the_streams_that_reach_the_bolt(streams: Command) -> None:
    assert streams(*RUN, "streams:through_a_bolt").code == 0
    done = streams("verify", "streams:through_a_bolt", "--counts", "c-bolt=count")
    assert (done.code, "not checked, because" in done.out) == (0, False), done.out


def test_without_the_code_nobody_knows_which_stream_a_table_counts(streams: Command) -> None:
    assert streams(*RUN, "streams:build").code == 0
    done = streams("verify", "streams", "--table", "c-one=one", "--counts", "c-one=count")
    assert done.code == 0
    assert "rows of 'c-one', count: not checked, because the code alone says which stream reaches it" in done.out


@pytest.mark.parametrize(("before", "after"), [("build", "first"), ("spouts", "alone")])
def test_a_stream_that_is_gone_may_have_been_counted(before: str, after: str, streams: Command) -> None:
    assert streams(*RUN, f"streams:{before}").code == 0
    done = streams("verify", f"streams:{after}")
    assert done.code == 0, done.out
    assert (
        "rows of 'c-one', count: not checked, because records of two/memory were read for a stream that is" in done.out
    )


def change_in_sql(statement: str) -> None:
    with closing(sqlite3.connect("states.db")) as connection, connection:
        connection.execute(statement)


def update() -> None:
    DeltaTable("counts").update({"count": "count + 1"}, predicate="word = 'cat'")


def test_a_right_history_is_said_to_be_right(animals: Command) -> None:
    done = animals("verify", "animals:build")
    assert (done.code, done.err) == (0, "")
    *notes, last = done.out.splitlines()
    assert last.startswith("animals: nothing is wrong; checked 2 transactions, ")
    assert "note: the table of 'hidden' can't be read from here: it was not checked" in notes


def test_sinks_are_read_again_for_a_topology_with_its_code(animals: Command) -> None:
    assert json.loads(animals("verify", "animals:build", "--sinks", "--json").out)["counts"] == {}
    assert animals("verify", "animals", "--sinks").code == 1


def test_a_wrong_history_is_reported_and_the_exit_code_is_1(animals: Command) -> None:
    update()
    done = animals("verify", "animals:build")
    assert done.code == 1
    assert "foreign-writer: table of 'count', Delta version 4: expected rows changed by the topology alone" in done.out
    # The count of the tuples is checked without being asked for: nothing stands between the spout and the state.
    assert "wrong-count: rows of 'count', count, transactions 1 to 2: expected 3" in done.out
    assert done.out.splitlines()[-1].startswith("animals: 2 things are WRONG; ")


def test_places_can_be_given_by_hand(animals: Command) -> None:
    shutil.move("counts", "elsewhere")
    given = ("verify", "animals", "--table", "count=elsewhere", "--json")
    report = json.loads(animals(*given).out)
    assert report["is_exact"]
    assert report["checked"]["transactions"] == 2
    assert animals("verify", "animals", "--table", "count=elsewhere", "--counts", "count=count").code == 0
    assert json.loads(animals(*given, "--counts", "count=*").out)["counts"] == {"wrong-count": 1}


def test_a_state_in_sql_is_looked_at(sqls: Command) -> None:
    assert "nothing is wrong; checked 2 transactions, 2 rows" in sqls("verify", "sqls:build").out
    change_in_sql("UPDATE counts SET count = count + 1 WHERE word = 'cat'")
    done = sqls("verify", "sqls:build")
    assert done.code == 1
    assert "wrong-count: rows of 'count', count, transactions 1 to 2: expected 3" in done.out
    change_in_sql("UPDATE counts SET count = count - 1 WHERE word = 'cat'")
    assert sqls("doctor", "sqls:build").out == "sqls: nothing is wrong\n"
    change_in_sql("ALTER TABLE counts ADD COLUMN colour TEXT")
    assert sqls("doctor", "sqls:build").out.startswith(
        "table-foreign: table of 'count' ('counts' in sqlite:///states.db)"
    )
    change_in_sql("ALTER TABLE counts DROP COLUMN colour")
    shutil.move("states.db", "elsewhere.db")
    moved = ("verify", "sqls:build", "--table")
    assert sqls(*moved, "count=sqlite:///elsewhere.db#counts").code == 0
    assert "name the table in it as well: URL#TABLE" in sqls(*moved, "count=sqlite:///elsewhere.db").err
    assert "there is no database of 'count' at states.db" in sqls("verify", "sqls:build").err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("animals", "--store", "sqlite:///none.db"), "TX100: animals can't be verified: there is no store at none.db"),
        (("animal",), "TX100: animal can't be verified: there is no topology 'animal' in the store; it has animals"),
        (("animals", "--table", "counts"), "TX100: --table takes COMPONENT=…"),
        (("animals", "--counts", "count=count"), "TX100: --counts names 'count', which has no table to check"),
        (("animals", "--count-records"), "TX100: --count-records needs a Kafka source"),
        (("animals:build", "--counts", "count=cuont"), "no value column 'cuont' that could count"),
    ],
)
def test_a_wrong_command_is_one_line(animals: Command, arguments: tuple[str, ...], expected: str) -> None:
    done = animals("verify", *arguments)
    assert (done.code, done.out) == (1, "")
    assert expected in done.err
    assert done.err.count("\n") == 1


def test_the_doctor_shows_and_repairs(animals: Command) -> None:
    note = "note: the state of 'hidden' is in no table that could be opened here; it was not checked\n"
    done = animals("doctor", "animals:build")
    assert (done.code, done.out) == (0, f"{note}animals: nothing is wrong\n")
    update()
    done = animals("doctor", "animals:build")
    assert done.code == 1
    assert done.out.startswith("foreign-writer: table of 'count' (")
    assert "  with --repair: the rows are restored to what they were at Delta version 3" in done.out
    assert done.out.endswith("animals: 1 things are wrong\n")
    done = animals("doctor", "animals:build", "--repair")
    assert done.code == 0
    assert "repaired: table of 'count' (" in done.out
    assert animals("verify", "animals:build").code == 0


def test_the_doctor_shows_it_as_json(animals: Command) -> None:
    told = json.loads(animals("doctor", "animals:build", "--json").out)
    assert (told["is_well"], told["findings"], told["repaired"]) == (True, [], [])
    update()
    done = animals("doctor", "animals:build", "--json")
    told = json.loads(done.out)
    assert (done.code, told["is_well"]) == (1, False)
    assert [each["problem"] for each in told["findings"]] == ["foreign-writer"]


def test_the_doctor_fills_a_wiped_store_from_a_journal(animals: Command) -> None:
    """Storm row T56."""
    for file in Path.cwd().glob("transactional.db*"):
        file.unlink()
    assert "there is no store at transactional.db" in animals("doctor", "animals:build").err
    done = animals("doctor", "animals:build", "--repair")
    assert done.code == 1
    assert "store-wiped: table of 'count' (" in done.out
    assert "pass the journal of the runs, with --journal FILE" in done.err
    assert "there is no journal nowhere" in animals("doctor", "animals:build", "--repair", "--journal", "nowhere").err
    done = animals("doctor", "animals:build", "--repair", "--journal", "journal")
    assert done.code == 0
    assert "repaired: the store of topology 'animals' says again that transaction 2 is committed" in done.out
    assert animals(*RUN, "animals:build").out.endswith("0 transactions committed, the last is 2; 0 attempts failed\n")


def test_a_run_does_not_go_on_from_rows_that_others_have_changed(command: Command) -> None:
    """Its only table is in Delta: one in memory, which goes with its run, would be missed first."""
    Path("animals.py").write_text("".join(line for line in TABLES.splitlines(keepends=True) if '"hidden"' not in line))
    sys.modules.pop("animals", None)
    assert command(*RUN, "animals:build").code == 0
    update()
    done = command(*RUN, "animals:build")
    assert done.code == 1
    assert "TX404: Delta table " in done.err
    assert "was changed by Delta version 4 (UPDATE), which is not the topology's" in done.err
    assert command("doctor", "animals:build", "--repair").code == 0
    assert command(*RUN, "animals:build").code == 0


def test_a_start_that_is_refused_has_fenced_no_table(animals: Command) -> None:
    """One committer's table was in memory, and has gone with the first run."""
    version = DeltaTable("counts").version()
    assert "TX404: committer 'hidden'" in animals(*RUN, "animals:build").err
    assert DeltaTable("counts").version() == version


class Own:
    class Count(Combiner):
        """Called as one of ours."""

        output, field = "odd long", None

        def init(self, row: Any) -> int:
            return int(row.n % 2)

        def combine(self, one: int, other: int) -> int:
            return one + other


@pytest.mark.parametrize(("aggregate", "counted"), [(Own.Count(), None), (Count(), "n")])
def test_the_column_that_counts_records_is_a_count_of_ours(aggregate: Any, counted: str | None) -> None:
    topology = TridentTopology("numbers")
    numbers = topology.new_stream("numbers", MemoryTransactionalSpout([[(1,)]], "n long", 1))
    numbers.persistent_aggregate(DeltaMapState("counted", ()), n=aggregate)
    [table], _ = checked_tables(topology.build())
    assert table.counts == counted
