"""Corruptions of a topology that has run, and who finds each: `verify`, the doctor, the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.histories import History
from tests.unit.verifier.planted import CORRUPTIONS, REFUSED, ROWS_ALONE, RUNS, WORDS, Planted
from transactional.errors import OperatingError, TransactionalError
from verifier.evidence.findings import CheckImpossible

GARBAGE = {"a batch is garbage", "the newest batch is garbage"}
"""Whoever reads it says that it can't be read."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    topology = Planted(tmp_path_factory.mktemp("healthy"))
    for number in RUNS:
        topology.run(WORDS[:number])
    return topology


@pytest.fixture
def hurt(healthy: Planted, tmp_path: Path, request: pytest.FixtureRequest) -> Planted:
    topology = Planted(healthy.copied(tmp_path / "hurt").folder)
    CORRUPTIONS[request.param](History(topology.folder))
    return topology


def test_nothing_is_wrong_with_what_is_hurt(healthy: Planted) -> None:
    assert (healthy.verified(), healthy.problems()) == (set(), [])


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("hurt", "what"), [(each, each) for each in CORRUPTIONS], indirect=["hurt"], ids=CORRUPTIONS)
def test_each_is_found(hurt: Planted, what: str) -> None:
    if what in GARBAGE:
        with pytest.raises(CheckImpossible, match=r"transactions 1 to 10 is not readable"):
            hurt.verified()
        with pytest.raises(OperatingError, match="the rows of the store can't be examined"):
            hurt.examine()
        return
    assert hurt.verified() != set()
    assert any(not each.is_harmless for each in hurt.examine()) == (what not in ROWS_ALONE)


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("hurt", "what"), [(each, each) for each in sorted(REFUSED)], indirect=["hurt"])
def test_a_start_is_refused_in_one_line_where_it_would_go_wrong(hurt: Planted, what: str) -> None:
    del what
    with pytest.raises(TransactionalError, match=r"\A[^\n]+\Z"):
        hurt.run([*WORDS, "bee"])


def test_how_many_there_are_and_are_found_is_what_the_page_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "howto" / "verify.md"
    found = f"Of {len(CORRUPTIONS)} kinds of corruption that the tests plant, `verify` finds all, the doctor "
    found += f"{len(CORRUPTIONS) - len(ROWS_ALONE)}, and the next start refuses {len(REFUSED)}."
    assert CORRUPTIONS.keys() >= REFUSED | ROWS_ALONE
    assert found in " ".join(page.read_text("utf-8").split())
