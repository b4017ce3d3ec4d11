"""What the doctor knows of a topology that was taken back: its journal, and its tables."""

from __future__ import annotations

from contextlib import closing

import pytest
from deltalake import DeltaTable

from tests.unit.operations.doctor.patients import TABLES, WORDS, Patient
from transactional.core.ports.examining import Problem
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import StoreMismatch
from transactional.model.attempt import TxId
from transactional.runtime.engine import rewinding
from transactional.runtime.engine.history.journal import JournalWriter, RewindLine, read_journal
from transactional.runtime.engine.history.replay import replay


def take_back(patient: Patient, txid: int, *, journal: bool = True) -> None:
    with closing(SqlCoordinatorStore(patient.url)) as store, closing(JournalWriter(patient.journal)) as writer:
        rewinding.rewind(patient.topology(), store, TxId(txid), owner="rewinder", journal=writer if journal else None)


def lose_store(patient: Patient) -> None:
    (patient.folder / "store.db").unlink()


def said(txid: int) -> list[str]:
    return [f"the store of topology 'words' says again that transaction {txid} is committed"]


def is_well(patient: Patient, words: list[str] = WORDS) -> bool:
    return all(each.is_harmless for each in patient.examine(patient.topology(words)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("txid", [5, 3, 1, 0])
def test_a_store_that_was_lost_after_a_rewind_takes_over_from_the_tables(patient: Patient, txid: int) -> None:
    take_back(patient, txid)
    lose_store(patient)
    assert patient.repair(journal=True) == said(txid)
    assert is_well(patient)
    patient.run()
    patient.assert_right(WORDS)


def test_and_after_the_topology_has_gone_on(patient: Patient) -> None:
    """Other words are committed as transactions that were committed before."""
    take_back(patient, 3)
    others = [*WORDS[:3], "elk", "ant", "owl", "elk"]
    patient.run(others)
    lose_store(patient)
    assert patient.repair(journal=True) == said(7)
    assert is_well(patient, others)
    patient.run([*others, "late"])
    patient.assert_right([*others, "late"])


def test_and_after_a_rewind_of_a_rewind(patient: Patient) -> None:
    take_back(patient, 2)
    patient.run([*WORDS[:2], "elk", "ant"])
    take_back(patient, 3)
    lose_store(patient)
    assert patient.repair(journal=True) == said(3)
    patient.run([*WORDS[:2], "elk", "yak"])
    patient.assert_right([*WORDS[:2], "elk", "yak"])


def test_a_rewind_that_the_journal_does_not_have_is_refused(patient: Patient) -> None:
    take_back(patient, 3, journal=False)
    lose_store(patient)
    with pytest.raises(StoreMismatch, match=r"attempt \d+ is not in the journal"):
        patient.repair(journal=True)


def test_a_rewind_that_has_not_ended_is_not_taken_for_one(patient: Patient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One table has gone back, the other has not, and the store is lost: nobody can go on from there."""
    steps, whole = list[str](), rewinding._take_back

    def once(component: object, *rest: object) -> None:
        if steps:
            raise KeyboardInterrupt
        steps.append("one")
        whole(component, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rewinding, "_take_back", once)
    with pytest.raises(KeyboardInterrupt):
        take_back(patient, 3)
    lose_store(patient)
    with pytest.raises(StoreMismatch, match=r"a rewind to transaction 3 had taken back some tables .* not those of"):
        patient.repair(journal=True)


def test_one_that_died_before_any_table_went_back_is_as_if_it_had_not_been(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rewinding, "_take_back", dies)
    with pytest.raises(KeyboardInterrupt):
        take_back(patient, 3)
    lose_store(patient)
    assert patient.repair(journal=True) == said(6)
    patient.run([*WORDS, "late"])
    patient.assert_right([*WORDS, "late"])


def test_a_journal_with_a_rewind_is_read_and_replayed(patient: Patient) -> None:
    take_back(patient, 3)
    patient.run()
    lines = [event for _, event, _ in read_journal(patient.journal) if isinstance(event, RewindLine)]
    assert [(line.txid, line.goes_back, line.batch.record_count) for line in lines] == [(3, False, 1), (3, True, 1)]
    assert [RewindLine.from_json(line.to_json()) for line in lines] == lines
    assert replay(read_journal(patient.journal)) > 9


def test_the_doctor_names_the_tables_that_were_taken_back(patient: Patient) -> None:
    assert patient.examine() == []
    take_back(patient, 3)
    found = patient.examine()
    assert [(each.problem, each.component, each.is_harmless) for each in found] == [
        (Problem.TABLE_REWOUND, name, True) for name in TABLES
    ]
    version = DeltaTable(str(patient.folder / "count")).version()
    assert f"Delta version {version} has taken it back to transaction 3" in found[0].what
    patient.run()
    assert [each.problem for each in patient.examine()] == [Problem.TABLE_REWOUND] * 2
