"""`make mutants`: what is planted is caught or survives, and what is known is not found out again."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants import noting, running
from tests.mutants.planting import ROOT, Variant
from tests.mutants.reporting import report, rows_of, write_table
from tests.mutants.running import (
    COMMANDS,
    HANGS,
    LIMIT_S,
    SILENT_S,
    Clean,
    Copy,
    Outcome,
    Result,
    Results,
    Tier,
    digest_of,
)
from tests.mutants.suites import servers_of, suites_of

FIRST = Variant("first", "room/one.py", "One is two.", "1", "2")
SECOND = Variant("second", "room/two.py", "Two is three.", "2", "3")
TESTS = {FIRST.file: ["tests/test_one.py"], SECOND.file: ["tests/test_one.py", "tests/test_two.py"]}
ONE, TWO, THREE = (f"tests/test_two.py::test_{name}" for name in ("one", "two", "three"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of two modules and two files of tests."""
    for name in (FIRST.file, SECOND.file, "tests/test_one.py", "tests/test_two.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("two = 2" if "two" in name else "one = 1")
    (tmp_path / ".gitignore").write_text("")
    for suites in ("suites_of", "servers_of"):
        monkeypatch.setattr(running, suites, lambda file, _: TESTS[file])
    monkeypatch.setattr(running, "MEMORY", tmp_path / "nowhere")
    return tmp_path


Tests = Callable[[Path, list[str]], Outcome]
Plant = Callable[[Variant, Tier, Tests], Result | None]


@pytest.fixture
def planted(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    """Plants a variant in a copy, whose tests are a function of its folder and their names."""
    with Copy(0, Event(), root) as copy:

        def plant(variant: Variant, tier: Tier, tests: Tests) -> Result | None:
            monkeypatch.setattr(Copy, "outcome", lambda self, _, names: tests(self.root, list(names)))
            return copy.tried(variant, tier, Clean())

        yield plant


def is_second(folder: Path) -> bool:
    return (folder / SECOND.file).read_text() == "two = 3"


def test_a_variant_is_caught_by_the_first_test_that_fails(planted: Plant, root: Path) -> None:
    def tests(folder: Path, names: list[str]) -> Outcome:
        return Outcome((ONE,)) if is_second(folder) else Outcome(passed=frozenset(names))

    result = planted(SECOND, Tier.CHECK, tests)
    assert result is not None
    assert (result.caught_by, result.tests) == ((ONE,), ("tests/test_two.py",))
    assert (root / SECOND.file).read_text() == "two = 2", "the checkout is not touched"
    survivor = planted(FIRST, Tier.CHECK, tests)
    assert survivor is not None
    assert (survivor.caught_by, survivor.tests) == ((), ("tests/test_one.py",))


def test_a_test_of_make_check_that_fails_in_any_event_ends_it(planted: Plant) -> None:
    with pytest.raises(RuntimeError, match="fails without first, too"):
        planted(FIRST, Tier.CHECK, lambda _folder, _names: Outcome(("tests/test_one.py::test_it",)))


def test_a_test_with_servers_that_fails_once_has_caught_nothing(planted: Plant) -> None:
    def tests(folder: Path, names: list[str]) -> Outcome:
        is_first_try = is_second(folder) and names == TESTS[SECOND.file]
        return Outcome((ONE,)) if is_first_try else Outcome(passed=frozenset(names))

    result = planted(SECOND, Tier.TEST, tests)
    assert result is not None
    assert result.caught_by == ()


def test_what_hangs_make_check_is_caught(planted: Plant) -> None:
    result = planted(SECOND, Tier.CHECK, lambda _folder, _names: Outcome((HANGS,)))
    assert result is not None
    assert (result.caught_by, list(result.tests)) == ((HANGS,), TESTS[SECOND.file])


def test_with_servers_the_first_test_of_each_file_counts_that_passes_without_the_variant(planted: Plant) -> None:
    other, asked = "tests/test_one.py::test_it", list[list[str]]()

    def tests(folder: Path, names: list[str]) -> Outcome:
        if is_second(folder):
            failing = [test for test in (ONE, TWO, other, THREE) if not names[0].count("::") or test in names]
            return Outcome(tuple(failing), is_cut=True)
        asked.append(names)
        return Outcome(passed=frozenset({TWO, THREE}.intersection(names)))

    result = planted(SECOND, Tier.TEST, tests)
    assert result is not None
    assert (result.caught_by, result.files, result.is_cut) == ((TWO,), ["tests/test_two.py"], True)
    assert list(result.tests) == TESTS[SECOND.file], "all files decide, also those that have caught nothing"
    assert asked == [[ONE, other], [TWO]], "once each, of all files together"


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

    def send_signal(self, number: int) -> None:
        self._now_s += number


@pytest.mark.parametrize(
    ("every_s", "limit_s", "code"),
    [(SILENT_S - 20, float("inf"), 0), (SILENT_S + 20, float("inf"), None), (LIMIT_S // 2, LIMIT_S, None)],
)
def test_tests_do_not_end_once_none_of_them_does_or_their_time_is_over(
    root: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, limit_s: float, code: int | None
) -> None:
    killed = list[int]()
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    with Copy(0, Event(), root) as copy, tempfile.TemporaryFile() as printed:
        tests = Printing(every_s, printed.fileno())
        monkeypatch.setattr(running, "time", tests)
        assert copy._wait(tests, printed.fileno(), limit_s) == code  # type: ignore[arg-type]
    assert killed == ([] if code == 0 else [0])


def test_what_is_cut_has_caught_what_had_failed_and_ends_what_it_has_started(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in the place of pytest, which leaves another one behind."""
    left = "['sh', '-c', 'echo; kill -STOP $$'], start_new_session=True, stdout=subprocess.PIPE"
    program = (
        f"import os, subprocess; subprocess.Popen({left}).stdout.readline()  # its environment is there by then\n"
        f"open(os.environ['{noting.OUTCOMES}'], 'w').write('passed a\\nfailed b\\npassed b\\n')"
    )
    monkeypatch.setattr(running, "COMMANDS", {Tier.ALL: (sys.executable, "-c", program)})
    monkeypatch.setattr(Copy, "_wait", lambda self, process, *_: process.wait() or None)
    monkeypatch.setattr(os, "kill", kill := Kills(os.kill))
    with Copy(0, Event(), root) as copy:
        assert copy.outcome(Tier.ALL, []) == Outcome(("b",), frozenset("a"), is_cut=True)
    assert len(kill.pids) == 1


class Kills:
    """Kills, and keeps the ids of the processes."""

    def __init__(self, kill: Callable[[int, int], None]) -> None:
        self.pids, self._kill = list[int](), kill

    def __call__(self, pid: int, number: int) -> None:
        self.pids.append(pid)
        self._kill(pid, number)


def test_a_test_is_noted_as_soon_as_it_has_an_outcome(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = pytester.path / "outcomes"
    monkeypatch.setenv(noting.OUTCOMES, str(noted))
    pytester.makepyfile(
        """
        import os, pytest
        @pytest.fixture
        def broken():
            yield
            raise OSError
        def test_right(): pass
        def test_wrong(): assert not os.path.exists(os.environ["MUTANTS_OUTCOMES"])
        def test_broken(broken): pass
        """
    )
    pytester.inline_run("-p", "tests.mutants.noting", "-p", "no:cacheprovider")
    [file] = {test.partition("::")[0] for test in noting.failed_tests(noted.read_text())}
    assert noting.failed_tests(noted.read_text()) == (f"{file}::test_wrong", f"{file}::test_broken")
    assert noting.passed_tests(noted.read_text()) == {f"{file}::test_right"}


def known(variant: Variant, tier: Tier, root: Path, *caught_by: str, is_cut: bool = False) -> Result:
    decide = tuple(TESTS[variant.file])
    return Result(variant.name, tier, caught_by, 1.0, digest_of(variant, decide, root), decide, is_cut)


def test_what_is_known_is_found_out_again_once_something_has_changed(root: Path) -> None:
    Results(root / "kept.json").add(known(FIRST, Tier.CHECK, root))
    results = Results(root / "kept.json", root)
    assert results.of(FIRST, Tier.CHECK) == known(FIRST, Tier.CHECK, root)
    assert results.of(FIRST, Tier.TEST) is None
    assert results.of(SECOND, Tier.CHECK) is None
    (root / "tests/test_two.py").write_text("another test")
    assert results.of(FIRST, Tier.CHECK) is not None, "it does not decide"
    for changed in (TESTS[FIRST.file][0], FIRST.file):
        before = (root / changed).read_text()
        (root / changed).write_text("something else")
        assert results.of(FIRST, Tier.CHECK) is None
        (root / changed).write_text(before)
    assert results.of(Variant("first", FIRST.file, "One is two.", "1", "3"), Tier.CHECK) is None


def test_a_variant_goes_from_tier_to_tier_until_it_is_caught(root: Path) -> None:
    results = Results(root / "kept.json", root)
    for tier in Tier:
        assert (results.next_tier(FIRST), results.next_tier(SECOND)) == (tier, tier if tier is Tier.CHECK else None)
        results.add(known(FIRST, tier, root))
        results.add(known(SECOND, Tier.CHECK, root, ONE))
    assert results.next_tier(FIRST) is None
    (root / SECOND.file).write_text("two = 2  # changed")
    assert results.next_tier(SECOND) is Tier.CHECK


def test_none_is_begun_after_its_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutants, "Copy", lambda number, is_over: Copy(number, is_over, root))
    monkeypatch.setattr(Copy, "outcome", lambda self, tier, names: Outcome())
    results = Results(root / "kept.json", root)
    assert list(mutants.run_all(Tier.CHECK, [FIRST, SECOND], results, time.monotonic())) == []
    ended = dict(mutants.run_all(Tier.CHECK, [FIRST, SECOND], results, float("inf")))
    assert {variant.name: result.caught_by for variant, result in ended.items()} == {"first": (), "second": ()}
    assert results.of(FIRST, Tier.CHECK) is not None


def test_the_report_names_what_survives_and_what_is_left(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = Results(root / "kept.json", root)
    assert report([FIRST, SECOND], results, Tier.CHECK) == 1
    assert "2 are left" in capsys.readouterr().out
    results.add(known(FIRST, Tier.CHECK, root, "tests/test_one.py::test_it"))
    results.add(known(SECOND, Tier.CHECK, root))
    assert report([FIRST, SECOND], results, Tier.CHECK) == 1
    said = capsys.readouterr().out
    assert "1 of 2 are caught by `make check`, 0 by `make test`, 0 by the same files in full, 1 survive" in said
    assert "second (room/two.py), tried up to `check`: Two is three." in said
    assert "left" not in said
    report([FIRST, SECOND], results, Tier.ALL)
    assert "1 are left, the same command continues with them: second" in capsys.readouterr().out
    allowed = Variant("second", "room/two.py", "Two is three.", "2", "3", lives="It is a demonstration.")
    results.add(known(allowed, Tier.CHECK, root))
    assert report([FIRST, allowed], results, Tier.CHECK) == 0
    assert "It may: It is a demonstration." in capsys.readouterr().out


def test_the_report_names_what_make_test_misses_and_the_table_what_make_check_does(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, table = Results(root / "kept.json", root), root / "caught.md"
    results.add(known(SECOND, Tier.CHECK, root))
    write_table([FIRST, SECOND], results, table)
    assert rows_of(table) == {}, "no tier is known for either"
    results.add(known(SECOND, Tier.TEST, root, is_cut=True))
    results.add(known(SECOND, Tier.ALL, root, ONE))
    assert report([SECOND], results, Tier.ALL) == 0
    assert f"`make test` misses second, which is caught by {ONE}" in capsys.readouterr().out
    write_table([FIRST, SECOND], results, table)
    row = "| second | room/two.py | all | tests/test_two.py |"
    assert rows_of(table) == {"second": row}
    write_table([FIRST, SECOND], Results(root / "none.json", root), table)
    assert rows_of(table) == {"second": row}, "it was not tried again"
    results.add(known(SECOND, Tier.ALL, root, is_cut=True))
    write_table([FIRST, SECOND], results, table)
    assert rows_of(table) == {"second": "| second | room/two.py | none (cut after five minutes) | - |"}
    results.add(known(SECOND, Tier.CHECK, root, ONE))
    write_table([FIRST, SECOND], results, table)
    assert rows_of(table) == {}, "`make check` sees it now"


def test_only_make_check_leaves_out_servers_and_ends_at_the_first_failure() -> None:
    for tier, command in COMMANDS.items():
        for option in "--exitfirst", "--without-servers":
            assert (option in command) == (tier is Tier.CHECK)
        assert ("--sample" in command) == (tier is not Tier.ALL)


def test_the_tests_about_a_file_come_first() -> None:
    found = suites_of("transactional/operations/queries/client.py", ROOT)
    assert found[0] == "tests/unit/operations/queries/test_client.py"
    assert found[1].startswith("tests/unit/operations/queries/")
    assert len(found) == len(set(found))
    assert suites_of("state/fence.py", ROOT)[0].startswith("tests/unit/state/")


def test_the_servers_of_a_file_are_those_of_its_most_precise_room() -> None:
    assert servers_of("transactional/runtime/executors/workers/pool.py", ROOT)[0].startswith(
        "tests/integration/workers/"
    )
    assert servers_of("state/sql/rows.py", ROOT) == servers_of("state/sql/table.py", ROOT)
    assert servers_of("state/sql/rows.py", ROOT) != servers_of("state/fence.py", ROOT)
    assert len(found := servers_of("spouts/kafka/clients/pool.py", ROOT)) == len(set(found))
