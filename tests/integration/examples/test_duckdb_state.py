"""A state of a user's own in a whole topology over Kafka: killed in its writes, opened twice, seen by commands."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from examples.duckdb_state import DuckDBMapState
from spouts.kafka_admin import produce
from spouts.local_broker import LocalBroker
from tests.integration.examples import dying_duckdb
from tests.integration.kafka_count import end_lease
from tests.integration.kafka_topics import new_topic
from tests.integration.programs import Program
from tests.rewinding import build, contents, expected, run, store_url
from transactional import Topology
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import BeyondKept, OperatingError
from transactional.model.attempt import TxId
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.doctor.examine import unexamined
from transactional.runtime.engine.rewinding import rewind

WORDS = [f"{letter * (1 + number % 3)}" for number in range(7) for letter in "abcdefg"]
EXPECTED = Counter(WORDS)


def produced(broker: LocalBroker) -> str:
    """A topic with the words, in two partitions."""
    topic = new_topic(broker.bootstrap, 2)
    produce(broker.bootstrap, topic, [(number % 2, None, word) for number, word in enumerate(WORDS)])
    return topic


def counts(folder: Path) -> dict[str, int]:
    rows = DuckDBMapState(folder / "tables.duckdb", "words", "value string", "count long").read().to_pylist()
    return {row["value"]: row["count"] for row in rows}


def means(folder: Path) -> dict[str, float]:
    state = DuckDBMapState(folder / "tables.duckdb", "letters", "letter string", "sum_length long, count_length long")
    return {row["letter"]: row["sum_length"] / row["count_length"] for row in state.read().to_pylist()}


def check(folder: Path) -> None:
    """Every word counts once."""
    lengths = {letter: [len(word) for word in WORDS if word[0] == letter] for letter in "abcdefg"}
    assert counts(folder) == EXPECTED
    assert means(folder) == {letter: sum(its) / len(its) for letter, its in lengths.items()}


def crash_and_finish(point: str, broker: LocalBroker, folder: Path, master: str) -> None:
    """Run until the process dies, and then to the end, in other batches."""
    topic = produced(broker)
    dying = [sys.executable, "-m", "tests.integration.examples.dying_duckdb", broker.bootstrap, topic, master, point]
    with Program(dying, folder) as program:
        assert program.wait() == -signal.SIGKILL, program.text
    end_lease(folder, "duckdb-words")
    dying_duckdb.run(broker.bootstrap, topic, str(folder), master, batch=7)
    check(folder)


@pytest.mark.kafka
@pytest.mark.sampled(4)
@pytest.mark.parametrize("point", dying_duckdb.POINTS)
def test_a_crash_in_a_write_changes_no_count(point: str, kafka_broker: LocalBroker, tmp_path: Path) -> None:
    crash_and_finish(point, kafka_broker, tmp_path, "none")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.long("test_a_crash_in_a_write_changes_no_count")
def test_a_crash_on_spark_changes_no_count(kafka_broker: LocalBroker, tmp_path: Path) -> None:
    crash_and_finish("at the rows of letters", kafka_broker, tmp_path, "local[2]")


HOLDS = "import duckdb, signal; file = duckdb.connect('tables.duckdb'); print('open', flush=True); signal.pause()"


def test_a_file_that_another_process_has_is_refused_in_one_line(tmp_path: Path) -> None:
    state = DuckDBMapState(tmp_path / "tables.duckdb", "words", "word string", "count long")
    with Program([sys.executable, "-c", HOLDS], tmp_path) as program:
        program.await_line("open")
        with pytest.raises(OperatingError, match=rf"\A[^\n]*PID {program.pid}[^\n]*end that one first\Z"):
            state.open("words/count", lambda _: 1)  # type: ignore[arg-type, return-value]
    state.open("words/count", lambda _: 1)  # type: ignore[arg-type, return-value]
    state.close()


def test_nothing_is_read_of_what_is_not_there(tmp_path: Path) -> None:
    state = DuckDBMapState(tmp_path / "tables.duckdb", "words", "word string", "count long")
    with pytest.raises(OperatingError, match="there is no such file yet"):
        state.read()
    assert not list(tmp_path.iterdir())


def test_a_table_that_is_somebody_elses_is_refused(tmp_path: Path) -> None:
    with duckdb.connect(tmp_path / "tables.duckdb") as file:
        file.execute("CREATE TABLE words (word VARCHAR)")
    state = DuckDBMapState(tmp_path / "tables.duckdb", "words", "word string", "count long")
    with pytest.raises(OperatingError):
        state.open("words/count", lambda _: 1)  # type: ignore[arg-type, return-value]


def test_a_topology_goes_back_by_a_transaction_and_continues(tmp_path: Path) -> None:
    """Its tables can't be read by the checker and the doctor, who say so."""

    def state(name: str, key: str, values: str = "", *, deletes: bool = False) -> DuckDBMapState:
        return DuckDBMapState(tmp_path / "tables.duckdb", name, key, values, deletes=deletes)

    def topology(transactions: int) -> Topology:
        return build(tmp_path, state, transactions=transactions, letters=False)

    with closing(SqlCoordinatorStore(store_url(tmp_path))) as store:
        run(topology(5), store)
        with pytest.raises(BeyondKept, match="the oldest that it can go back to is 4"):
            rewind(topology(5), store, TxId(3), owner="rewinder")
        rewind(topology(5), store, TxId(4), owner="rewinder")
        assert contents(topology(5)) == right(4)
        run(topology(6), store)
        assert contents(topology(6)) == right(6)
    checked, unchecked = checked_tables(topology(6))
    assert checked == []
    assert [*unchecked] == unexamined(topology(6)) == [each.id for each in topology(6).committers]


def right(transactions: int) -> Any:
    """What a plain count gives."""
    return {name: rows for name, rows in expected(transactions, 6).items() if name != "dead-letters"}
