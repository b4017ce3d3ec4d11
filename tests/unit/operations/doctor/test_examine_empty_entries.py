"""An entry of a table's log without a byte, which delta-rs passes over: refused where a load reads it, and named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from state.delta.log.log import find_first_empty_entry
from state.delta.state import DeltaMapState
from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient
from tests.unit.operations.doctor.test_examine_torn import STARTS, entries, everything, run_by_driver
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import BeyondKept, OperatingError, StoreMismatch
from transactional.model.attempt import TxId
from transactional.runtime.engine import rewinding
from verifier.checker import CheckedTable, verify

pytestmark = pytest.mark.sampled(2)

REFUSED = r"entry 0+{}\.json of its log has no byte, .*Restore the entry .*`transactional rewind`"


def empty(entry: Path) -> None:
    entry.write_bytes(b"")


def rewind(patient: Patient, txid: int) -> None:
    with closing(SqlCoordinatorStore(patient.url)) as store:
        rewinding.rewind(patient.topology(), store, TxId(txid), owner="rewinder")


def found_by_verify(patient: Patient) -> list[str]:
    tables = [CheckedTable(name, str(patient.folder / name)) for name in TABLES]
    return [str(each.found) for each in verify(patient.url, "words", tables).findings]


@pytest.mark.parametrize("table", TABLES)
def test_a_start_is_refused_and_readers_doctor_and_checker_name_it(patient: Patient, table: str) -> None:
    """In one line, until it is restored; nothing is changed."""
    entry = entries(patient, table)[-3]
    whole = entry.read_bytes()
    empty(entry)
    before = everything(patient, table)
    for start in STARTS:
        with pytest.raises(StoreMismatch, match=REFUSED.format(int(entry.stem))) as refused:
            start(patient)
        assert "\n" not in str(refused.value)
    with pytest.raises(StoreMismatch, match=REFUSED.format(int(entry.stem))):
        patient.counts(table)
    [found] = patient.examine()
    assert (found.problem, found.component) == (Problem.TABLE_UNREADABLE, table)
    assert f"{entry.name} of the log has no byte" in found.what
    assert "`transactional rewind`" in found.remedy
    assert found_by_verify(patient) == [f"the entry of Delta version {int(entry.stem)} has no byte"]
    assert everything(patient, table) == before
    entry.write_bytes(whole)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


@pytest.mark.parametrize("place", [-1, -3])
@pytest.mark.parametrize("table", TABLES)
def test_a_rewind_to_before_it_goes_on_from_there(patient: Patient, table: str, place: int) -> None:
    """One to a transaction after it is refused: the rows of then can't be read."""
    empty(entries(patient, table)[place])
    if place == -3:
        with pytest.raises(BeyondKept, match=r"has no byte; the oldest that it can go back to is 0|no byte"):
            rewind(patient, 5)
    rewind(patient, 2)
    assert patient.counts(table) == {"cat": 1, "dog": 1}
    patient.run([*WORDS, "late"])
    assert [patient.counts(name) for name in TABLES] == [{"cat": 3, "dog": 1, "owl": 1, "emu": 1, "late": 1}] * 2


@pytest.mark.parametrize("table", TABLES)
def test_one_before_the_checkpoint_is_not_read(patient: Patient, table: str) -> None:
    """A start goes on, and rightly; doctor and checker name it, since it is missing from the history."""
    DeltaTable(patient.folder / table).create_checkpoint()
    entry = entries(patient, table)[-3]
    empty(entry)
    patient.run([*WORDS, "late"])
    assert patient.counts(table) == {"cat": 3, "dog": 1, "owl": 1, "emu": 1, "late": 1}
    found = patient.examine(patient.topology([*WORDS, "late"]))
    assert [(each.problem, each.component) for each in found] == [(Problem.TABLE_UNREADABLE, table)]
    assert len(found_by_verify(patient)) == 1


@pytest.mark.parametrize("table", TABLES)
def test_a_running_leader_ends(patient: Patient, table: str) -> None:
    """Nothing is committed over it."""
    topology: Any = patient.topology([*WORDS, "late", "later", "latest"])
    state, txids = topology.component(table).state, list[int]()

    def emptying(merge: Callable[..., None]) -> Callable[..., None]:
        def merged(attempt: Any, partials: Any) -> None:
            if attempt.txid == 8:
                empty(entries(patient, table)[-1])
            merge(attempt, partials)
            txids.append(attempt.txid)

        return merged

    state.merge = emptying(state.merge)
    patient.topology = lambda *_: topology  # type: ignore[method-assign]
    with pytest.raises(StoreMismatch, match="has no byte"):
        run_by_driver(patient)
    assert txids == [7]


def test_no_checkpoint_is_made_of_it(patient: Patient) -> None:
    """It would say for good that nothing was written there."""
    words = DeltaMapState(patient.folder / "count", "word string", "count long")
    words.open("words/count", TxId)
    empty(entries(patient, "count")[-3])
    log = words.open_table.loaded.log
    log.begin_checkpoint(words.open_table.loaded.delta_version, lambda: None)
    log.checkpoint.wait(lambda: True)
    with pytest.raises(StoreMismatch, match="has no byte"):
        log.end_checkpoint()


def test_an_older_transaction_is_not_read_through_it(patient: Patient) -> None:
    """A reader that goes back in the log loads a version that a checkpoint of a later one does not help with."""
    DeltaTable(patient.folder / "count").create_checkpoint()
    versions = entries(patient, "count")
    empty(versions[3])
    reader = DeltaMapState(patient.folder / "count", "word", "count long").reader("words/count")
    reader.pin(TxId(6))
    reader.release()
    with pytest.raises(OperatingError, match=r"can't be read as of transaction 3 any more: .*has no byte"):
        reader.pin(TxId(3))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("sizes", "until", "first"),
    [
        ({"e0": 9, "e1": 9}, None, None),
        ({"e0": 9, "e1": 0, "e2": 0}, None, 1),
        ({"e1": 0, "e2": 0, "c1": 9}, None, 1),
        ({"e1": 0, "e2": 0, "c2": 9}, None, 2),
        ({"e1": 0, "e2": 9, "c2": 9}, None, None),
        ({"e1": 0, "e2": 9, "c2": 0}, None, 1),
        ({"e1": 0, "e2": 9, "c2": 9}, 1, 1),
        ({"e1": 9, "e2": 0}, 1, None),
    ],
)
def test_what_a_load_reads(sizes: Mapping[str, int], until: int | None, first: int | None) -> None:
    """Entries (e) at and after the newest checkpoint (c) that is there and has a byte."""
    endings = {"e": "json", "c": "checkpoint.parquet"}
    names = {f"{int(name[1:]):020}.{endings[name[0]]}": size for name, size in sizes.items()}
    assert find_first_empty_entry(names, until) == first
