"""Which tests a command runs: `--sample` for `make test`, with `--without-servers` for `make check`, and `--slice` for
parts of what the sample leaves out.

A test marked `sampled(n)` has many cases that say much the same, of which each n-th is in the sample; a test marked
`long` is left out of it, because a cheaper one catches the same. What is left out is cut into slices of like cost, file
by file. Tests of Hypothesis are in the sample with few examples, and in the slices with as many as they ask for.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test

from tests.costs import Tier, read_costs
from tests.servers import is_checked, starts_programs
from transactional.runtime.engine.clock import SystemClock

SLICES = 8
SLICE_HOURS = 3
"""For so long `--slice auto` is the same slice."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One of `total` parts of what the sample leaves out; `number` begins with 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str, now_ms: int | None = None) -> Slice:
        """Read `3/8`, or `auto`, which is another eighth every three hours. Raises `pytest.UsageError`."""
        if text == "auto":
            hours = (SystemClock().wall_ms() if now_ms is None else now_ms) // 3_600_000
            return cls(hours // SLICE_HOURS % SLICES + 1, SLICES)
        number, _, total = text.partition("/")
        if not (number.isdigit() and total.isdigit() and 1 <= int(number) <= int(total)):
            raise pytest.UsageError(f"--slice {text}: write auto, or a part of the whole such as 3/8")
        return cls(int(number), int(total))

    def __str__(self) -> str:
        return f"slice {self.number} of {self.total}"


class Selection:
    """The plugin that leaves tests out."""

    def __init__(self, config: pytest.Config) -> None:
        text = config.getoption("--slice")
        self.is_sample: bool = config.getoption("--sample")
        self.is_check: bool = config.getoption("--without-servers")
        self.slice = Slice.parse(text) if text else None
        if self.is_sample and self.slice:
            raise pytest.UsageError("--slice is of what --sample leaves out: say one of them")

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Import no file under `--without-servers` that has no test for it."""
        if self.is_check and collection_path.is_relative_to(config.rootpath):
            path = collection_path.relative_to(config.rootpath).as_posix()
            return True if collection_path.is_file() and starts_programs(path) else None
        return None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the command does not run, after `-m` and `-k` have done so."""
        chosen = [item for item in items if not self.is_check or is_checked(item)]
        if self.is_sample:
            left_out = items_beside_the_sample(items)
            chosen = [item for item in chosen if item not in left_out]
        elif self.slice is not None:
            left_out = items_beside_the_sample(items)
            chosen = items_of_slice([item for item in chosen if item in left_out or has_examples(item)], self.slice)
        config.hook.pytest_deselected(items=list(set(items).difference(chosen)))
        items[:] = chosen

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> str:
        """Say which slice it is, and how many tests there are."""
        return f"{self.slice or 'the sample' if self.is_sample or self.slice else 'all'}: {len(items)} tests"


def has_examples(item: pytest.Item) -> bool:
    """True for a test of Hypothesis."""
    return isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)


def items_beside_the_sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """The tests that `--sample` leaves out: the same ones each time.

    Of a test with several parameters, as a table has rows and columns, the sample has diagonals, which meet each value;
    likewise of a file that is marked, whose tests are the rows. At least one case of a test is in the sample, unless
    the mark says `tests=True`.
    """
    values_of = defaultdict[tuple[str, int], list[str]](list)
    cases_of = defaultdict[str, list[pytest.Item]](list)
    left_out = set[pytest.Item]()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        cases_of[test_of(item)].append(item)
        if sampled and diagonal_of(item, values_of) % sampled.args[0]:
            left_out.add(item)
    left_out -= {cases[0] for cases in cases_of.values() if left_out.issuperset(cases) and keeps_one_case(cases[0])}
    return left_out | {item for item in items if item.get_closest_marker("long")}


def test_of(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def keeps_one_case(item: pytest.Item) -> bool:
    sampled = item.get_closest_marker("sampled")
    return sampled is not None and not sampled.kwargs.get("tests", False)


def diagonal_of(item: pytest.Item, values_of: dict[tuple[str, int], list[str]]) -> int:
    """The sum of the numbers that the test and the values of its parameters have, in the order of the collection.

    `values_of` lists the values of each file's tests and of each test's parameters, and grows.
    """
    diagonal, test, file = 0, test_of(item), item.nodeid.split("::")[0]
    parameters = getattr(getattr(item, "callspec", None), "_idlist", ())
    for place, axis, value in ((file, -1, test), *((test, axis, value) for axis, value in enumerate(parameters))):
        values = values_of[place, axis]
        if value not in values:
            values.append(value)
        diagonal += values.index(value)
    return diagonal


def items_of_slice(items: list[pytest.Item], part: Slice) -> list[pytest.Item]:
    """The tests of one slice: whole files, the dearest first, each to the slice that is the cheapest until then."""
    files = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        files[item.nodeid.split("::")[0]].append(item)
    costs = read_costs()
    sums_s, chosen = [0.0] * part.total, list[pytest.Item]()
    for file in sorted(files, key=lambda file: (-costs.of(file, Tier.REST), file)):
        cheapest = sums_s.index(min(sums_s))
        sums_s[cheapest] += costs.of(file, Tier.REST)
        if cheapest == part.number - 1:
            chosen.extend(files[file])
    return chosen
