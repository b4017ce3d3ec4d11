"""The newest files of a table are not there, or not whole: what the store has committed of them is never set aside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.drivers import DRAINED
from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import StoreMismatch
from transactional.model.attempt import TxId
from transactional.operations.launch.running import make_executor, run_topology
from transactional.runtime.engine import rewinding
from transactional.runtime.engine.driver import TopologyDriver

pytestmark = pytest.mark.sampled(2)


def entries(patient: Patient, table: str) -> list[Path]:
    """Those of a table's log, oldest first."""
    return sorted((patient.folder / table / "_delta_log").glob("*.json"))


def newest_file(patient: Patient, table: str) -> Path:
    """A data file that the newest Delta commit has added."""
    lines = map(json.loads, entries(patient, table)[-1].read_text().splitlines())
    return patient.folder / table / next(str(line["add"]["path"]) for line in lines if "add" in line)


def everything(patient: Patient, table: str) -> dict[Path, bytes]:
    """All files of a table."""
    return {path: path.read_bytes() for path in (patient.folder / table).rglob("*") if path.is_file()}


@contextmanager
def away(file: Path) -> Iterator[None]:
    """A file is somewhere else for a while."""
    elsewhere = file.rename(file.with_suffix(".away"))
    yield
    elsewhere.rename(file)


def run_by_command(patient: Patient) -> None:
    """As `transactional run` does it, which looks before it starts Spark."""
    run_topology(patient.topology(), store=patient.url, master="none", config={"stop_when_drained": True})


def run_by_driver(patient: Patient) -> None:
    """As a standby does it that takes over."""
    topology = patient.topology()
    with closing(SqlCoordinatorStore(patient.url)) as store:
        TopologyDriver(topology, store, make_executor(topology, master="none"), DRAINED).run()


STARTS = (run_by_command, run_by_driver)


def is_left_alone(patient: Patient, table: str, what: str) -> None:
    """Starts are refused in one line, the doctor says the same, and neither changes anything."""
    before = everything(patient, table)
    for start in STARTS:
        with pytest.raises(StoreMismatch) as refused:
            start(patient)
        assert what in str(refused.value)
        assert "\n" not in str(refused.value)
    assert patient.problems() == [(Problem.TABLE_BEHIND, table, False)]
    [found] = patient.examine()
    assert what in found.what
    assert "put them back" in found.remedy
    assert patient.repair() == []
    assert everything(patient, table) == before


@pytest.mark.parametrize("table", TABLES)
def test_a_committed_file_that_is_missing_for_a_moment_is_waited_for(patient: Patient, table: str) -> None:
    """A mount that is not there yet, a restore that is under way, a file that somebody has moved."""
    file = newest_file(patient, table)
    with away(file):
        is_left_alone(
            patient, table, f"the file {file.relative_to(patient.folder / table)} that it adds does not exist"
        )
    assert patient.examine() == []
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


@pytest.mark.parametrize("table", TABLES)
def test_so_is_one_that_is_cut_short(patient: Patient, table: str) -> None:
    file = newest_file(patient, table)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    is_left_alone(patient, table, f"has {len(whole) - 9} bytes instead of {len(whole)}")
    file.write_bytes(whole)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def test_an_entry_of_what_is_committed_that_is_cut_short_is_left_alone(patient: Patient) -> None:
    """With `durability = "process"` a power cut leaves such a one: whose it was can't be read any more."""
    entry = entries(patient, "count")[-1]
    whole = entry.read_bytes()
    entry.write_bytes(whole[: len(whole) // 2])
    is_left_alone(patient, "count", f"{entry.name}: it is truncated")
    entry.write_bytes(whole)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def die_between_tables(patient: Patient) -> None:
    """Run one more transaction, which only the first table has."""
    topology = patient.topology([*WORDS, "late"])
    other: Any = topology.component("other").state

    def refuse(*_: object) -> None:
        raise StoreMismatch("the power is gone")

    other.merge = refuse
    with closing(SqlCoordinatorStore(patient.url)) as store:
        driver = TopologyDriver(topology, store, make_executor(topology, master="none"))
        with pytest.raises(StoreMismatch, match="the power is gone"):
            driver.run()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("tear", [Path.unlink, cut])
@pytest.mark.parametrize("by", ["start", "repair"])
def test_what_is_not_committed_is_set_aside(patient: Patient, tear: Callable[[Path], None], by: str) -> None:
    die_between_tables(patient)
    tear(newest_file(patient, "count"))
    assert patient.problems() == [(Problem.TABLE_TORN, "count", True)]
    if by == "repair":
        assert patient.repair() == [f"table of 'count' ({patient.folder}/count): 1 torn files of its log are set aside"]
        assert patient.examine() == []
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def test_of_two_that_are_torn_neither_is_set_aside_as_long_as_one_is_committed(patient: Patient) -> None:
    committed = newest_file(patient, "count")
    die_between_tables(patient)
    newest_file(patient, "count").unlink()
    with away(committed):
        # The fence lies between the two, and adds nothing.
        assert [problem for problem, *_ in patient.problems()] == [Problem.TABLE_TORN]
        fence = entries(patient, "count")[-2]
        with away(fence):
            entries(patient, "count")[-1].rename(fence)
            before = everything(patient, "count")
            assert patient.problems() == [(Problem.TABLE_BEHIND, "count", False)]
            with pytest.raises(StoreMismatch):
                run_by_driver(patient)
            assert everything(patient, "count") == before
            fence.rename(entries(patient, "count")[-1].with_name(f"{int(fence.stem) + 1:020}.json"))
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def test_so_it_is_after_a_rewind(patient: Patient) -> None:
    """The table would be at what was taken back."""
    with closing(SqlCoordinatorStore(patient.url)) as store:
        rewinding.rewind(patient.topology(), store, TxId(5), owner="rewinder")
    file = newest_file(patient, "count")
    before = everything(patient, "count")
    with away(file):
        [found] = [each for each in patient.examine() if not each.is_harmless]
        assert (found.component, found.can_repair, str(file.name) in found.what) == ("count", False, True)
        for start in STARTS:
            with pytest.raises(StoreMismatch, match="a rewind has taken back"):
                start(patient)
    assert everything(patient, "count") == before
    patient.run()
    patient.assert_right(WORDS)


def test_a_store_that_knows_nothing_of_the_table_can_not_say_what_is_committed(patient: Patient) -> None:
    """It was lost as well: what is torn is set aside, and the store catches up with what is left."""
    newest_file(patient, "count").unlink()
    for file in patient.folder.glob("store.db*"):
        file.unlink()
    assert (Problem.TABLE_TORN, "count", True) in patient.problems()
    assert "1 torn files" in str(patient.repair(journal=True))
    patient.repair(journal=True)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])
