"""The list of wrong variants of the code applies to the code: `make mutants` can plant each of them."""

from __future__ import annotations

import pytest

from tests.mutants.planting import Variant, problems_of, variants
from tests.mutants.reporting import rows_of
from tests.mutants.suites import SERVERS, SUITES, files_of, servers_of, suites_of
from tests.tidy.files import ROOT

EVERY = variants()


def test_every_variant_applies_and_compiles() -> None:
    problems = list(problems_of(EVERY))
    assert not problems, "\n".join(["the code has changed; let the variants be wrong in the same way:", *problems])


def test_every_variant_has_tests_in_the_suites_of_its_room() -> None:
    assert [each.name for each in EVERY if not suites_of(each.file, ROOT) or not servers_of(each.file, ROOT)] == []
    named = {suite for suites in (*SUITES.values(), *SERVERS.values()) for suite in suites}
    assert [suite for suite in sorted(named) if not [*files_of(suite, ROOT)]] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"old": "nowhere to be found"}, "0 times"),
        ({"old": "a"}, "has the old text"),
        ({"new": "def txid_at("}, "changes nothing"),
        ({"new": "def txid_at(("}, "parenthesized"),
        ({"file": "state/nowhere.py"}, "No such file"),
        ({"shows": ""}, "does not say what a user would notice"),
    ],
)
def test_what_can_not_be_planted_is_reported(change: dict[str, str], problem: str) -> None:
    right = {"name": "right", "file": "state/fence.py", "shows": "All.", "old": "def txid_at(", "new": "def txids_at("}
    assert list(problems_of([Variant(**right)])) == []
    [found] = problems_of([Variant(**right | change)])
    assert problem in found


def test_two_variants_of_one_name_are_reported() -> None:
    assert f"2 variants are called {EVERY[0].name}" in [*problems_of([EVERY[0], EVERY[0]])]


def test_the_table_of_what_make_check_does_not_see_is_of_variants() -> None:
    files = {each.name: each.file for each in EVERY}
    assert {
        name: row.split(" | ")[1] for name, row in rows_of().items() if files.get(name) not in row.split(" | ")
    } == {}
