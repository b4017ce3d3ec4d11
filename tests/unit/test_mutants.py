"""`make mutants`: what is planted is caught or survives, and what is known is not found out again."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import running
from tests.mutants.planting import ROOT, Variant
from tests.mutants.running import SILENT_S, Clean, Copy, Result, Results, digest_of
from tests.mutants.suites import suites_of

FIRST = Variant("first", "room/one.py", "One is two.", "1", "2")
SECOND = Variant("second", "room/two.py", "Two is three.", "2", "3")
TESTS = {FIRST.file: ["tests/test_one.py"], SECOND.file: ["tests/test_one.py", "tests/test_two.py"]}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two modules and two files of tests."""
    for name in (FIRST.file, SECOND.file, "tests/test_one.py", "tests/test_two.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("two = 2" if "two" in name else "one = 1")
    (tmp_path / ".gitignore").write_text("")
    monkeypatch.setattr(running, "suites_of", lambda file, _: TESTS[file])
    monkeypatch.setattr(running, "MEMORY", tmp_path / "nowhere")
    return tmp_path


Tests = Callable[[Path, list[str]], str | None]


@pytest.fixture
def planted(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Variant, Tests], Result | None]]:
    """Plants a variant in a copy, whose tests are a function of its folder and their names."""
    with Copy(0, Event(), root) as copy:

        def plant(variant: Variant, tests: Tests) -> Result | None:
            monkeypatch.setattr(Copy, "failing", lambda self, names: tests(self.root, list(names)))
            return copy.tried(variant, Clean())

        yield plant


def test_a_variant_is_caught_by_the_first_test_that_fails(
    planted: Callable[[Variant, Tests], Result | None], root: Path
) -> None:
    def tests(folder: Path, names: list[str]) -> str | None:
        return "tests/test_two.py::test_it" if (folder / SECOND.file).read_text() == "two = 3" else None

    result = planted(SECOND, tests)
    assert result is not None
    assert (result.caught_by, result.tests) == ("tests/test_two.py::test_it", ("tests/test_two.py",))
    assert (root / SECOND.file).read_text() == "two = 2", "the checkout is not touched"
    survivor = planted(FIRST, tests)
    assert survivor is not None
    assert (survivor.caught_by, survivor.tests) == (None, ("tests/test_one.py",))


def test_a_test_that_fails_in_any_event_catches_nothing(planted: Callable[[Variant, Tests], Result | None]) -> None:
    with pytest.raises(RuntimeError, match="fails without first, too"):
        planted(FIRST, lambda _folder, _names: "tests/test_one.py::test_it")


class Printing:
    """Five tests, of which one ends every so many seconds of a clock of their own."""

    pid = 0

    def __init__(self, every_s: float, printed: int) -> None:
        self._ends_s, self._printed, self._now_s = [every_s * number for number in range(1, 6)], printed, 0.0

    def monotonic(self) -> float:
        return self._now_s

    def wait(self, timeout_s: float | None = None) -> int:
        if timeout_s is None or not self._ends_s:
            return 0
        self._now_s += 10
        if self._now_s >= self._ends_s[0]:
            del self._ends_s[0]
            os.write(self._printed, b".")
        raise subprocess.TimeoutExpired("pytest", timeout_s)


@pytest.mark.parametrize(("every_s", "code"), [(SILENT_S - 20, 0), (SILENT_S + 20, None)])
def test_tests_do_not_end_once_none_of_them_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, code: int | None
) -> None:
    killed = list[int]()
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    with Copy(0, Event(), root) as copy, tempfile.TemporaryFile() as printed:
        tests = Printing(every_s, printed.fileno())
        monkeypatch.setattr(running, "time", tests)
        assert copy._wait(tests, printed.fileno()) == code  # type: ignore[arg-type]
    assert killed == ([] if code == 0 else [0])


def test_what_is_known_is_found_out_again_once_something_has_changed(root: Path) -> None:
    decided = tuple(TESTS[FIRST.file])
    Results(root / "kept.json").add(Result("first", None, 1.0, digest_of(FIRST, decided, root), decided))
    results = Results(root / "kept.json", root)
    assert results.of(FIRST) is not None
    assert results.of(SECOND) is None
    (root / "tests/test_two.py").write_text("another test")
    assert results.of(FIRST) is not None, "it does not decide"
    for changed in (decided[0], FIRST.file):
        before = (root / changed).read_text()
        (root / changed).write_text("something else")
        assert results.of(FIRST) is None
        (root / changed).write_text(before)
    assert results.of(Variant("first", FIRST.file, "One is two.", "1", "3")) is None


def test_none_is_begun_after_its_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "Copy", lambda number, is_over: Copy(number, is_over, root))
    monkeypatch.setattr(Copy, "failing", lambda self, names: None)
    results = Results(root / "kept.json", root)
    assert list(mutants.run_all([FIRST, SECOND], results, time.monotonic())) == []
    ended = dict(mutants.run_all([FIRST, SECOND], results, float("inf")))
    assert {variant.name: result.caught_by for variant, result in ended.items()} == {"first": None, "second": None}
    assert results.of(FIRST) is not None


def test_the_report_names_what_survives_and_what_is_left(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(root / "kept.json", root)
    assert mutants.report([FIRST, SECOND], results) == 1
    assert "2 are left" in capsys.readouterr().out
    results.add(Result("first", "tests/test_one.py::test_it", 1.0, digest_of(FIRST, (), root)))
    results.add(Result("second", None, 1.0, digest_of(SECOND, (), root)))
    assert mutants.report([FIRST, SECOND], results) == 1
    told = capsys.readouterr().out
    assert "1 of 2 are caught, 1 survive" in told
    assert "second (room/two.py): Two is three." in told
    allowed = Variant("second", "room/two.py", "Two is three.", "2", "3", lives="It is a demonstration.")
    results.add(Result("second", None, 1.0, digest_of(allowed, (), root)))
    assert mutants.report([FIRST, allowed], results) == 0
    assert "It may: It is a demonstration." in capsys.readouterr().out


def test_the_tests_about_a_file_come_first() -> None:
    found = suites_of("transactional/queries/client.py", ROOT)
    assert found[0] == "tests/unit/queries/test_client.py"
    assert found[1].startswith("tests/unit/queries/")
    assert len(found) == len(set(found))
    assert suites_of("state/fence.py", ROOT)[0].startswith("tests/unit/state/")
