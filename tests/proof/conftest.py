"""What the proofs share: which of them only `make proof` runs, and what they tell at the end of it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.coverage import Coverage

DEFAULT_SEED = 7
_lines = pytest.StashKey[list[str]]()
_counts = pytest.StashKey[Counter[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proof")
    group.addoption("--proof", action="store_true", help="run the long proofs too; `make proof`")
    group.addoption("--kills", type=int, help="how many kills each soak has; by default as many as the proof wants")
    group.addoption("--seed", type=int, default=DEFAULT_SEED, help="what chance chooses in the proofs")
    group.addoption("--proved", type=Path, help="the file to write what was proved to")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "proof: takes long; only with --proof")
    config.addinivalue_line("markers", "sample: a part of a long proof; not with --proof, which runs the whole")
    config.stash[_lines], config.stash[_counts] = [], Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselected, not skipped: a skip would be something that is missing."""
    other = "sample" if config.getoption("--proof", default=False) else "proof"
    left_out = [item for item in items if item.get_closest_marker(other)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(_lines, []):
        terminalreporter.line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What was proved, and at what cost, this process and those that it has waited for."""
    if file := session.config.getoption("--proved", default=None):
        proved = {"lines": session.config.stash[_lines], "counts": +session.config.stash[_counts]}
        file.write_text(json.dumps({**proved, "processors_s": sum(os.times()[:4])}), encoding="utf-8")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run."""
    given: int = pytestconfig.getoption("--seed", default=DEFAULT_SEED)
    return given


@pytest.fixture(scope="session")
def kills(pytestconfig: pytest.Config) -> int | None:
    """How many kills a soak has; None: as many as it says."""
    given: int | None = pytestconfig.getoption("--kills", default=None)
    return given


@pytest.fixture(scope="session")
def told(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed when all is done."""
    return pytestconfig.stash.setdefault(_lines, [])


@pytest.fixture(scope="session")
def counts(pytestconfig: pytest.Config) -> Counter[str]:
    """How much of what was proved; `make proof` adds them up."""
    return pytestconfig.stash.setdefault(_counts, Counter())


@pytest.fixture(scope="session")
def coverage(told: list[str], counts: Counter[str], seed: int) -> Iterator[Coverage]:
    """The crash points of tables that this process writes by itself."""
    yield from counted(Coverage("crash points, delta-rs", seed), told, counts)


def counted(coverage: Coverage, told: list[str], counts: Counter[str]) -> Iterator[Coverage]:
    yield coverage
    told.append(str(coverage))
    counts.update({"crash points": coverage.covered, "second crashes": coverage.twice})
