"""`-p tests.mutants.noting`: writes the outcome of each test to the file in `$MUTANTS_OUTCOMES` as soon as it has one,
so that a run that has to be ended leaves what it has shown so far."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

OUTCOMES: Final = "MUTANTS_OUTCOMES"
FAILED, PASSED = "failed", "passed"


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(FAILED, report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note(FAILED, report.nodeid)
    elif report.when == "teardown":
        _note(PASSED, report.nodeid)


def failed_tests(text: str) -> tuple[str, ...]:
    """The tests that have failed in a phase, in the order in which they did."""
    return tuple(dict.fromkeys(id_ for outcome, _, id_ in map(_split, text.splitlines()) if outcome == FAILED))


def passed_tests(text: str) -> set[str]:
    """The tests that have ended without a failure in any phase."""
    failed = set(failed_tests(text))
    return {id_ for outcome, _, id_ in map(_split, text.splitlines()) if outcome == PASSED} - failed


def _split(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


def _note(outcome: str, test: str) -> None:
    with Path(os.environ[OUTCOMES]).open("a", encoding="utf-8") as file:
        file.write(f"{outcome} {test}\n")
