"""`make proof` goes on where it was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier

import pytest

from tests.proof import __main__ as proof
from tests.proof.__main__ import Outcome, Part

PARTS = [Part("tests/proof/test_a.py", ("a::one", "a::two")), Part("tests/proof/test_b.py::long", ("b::long",))]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts that were run; `long` fails the first time."""
    names = list[str]()

    def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        names.append(part.name)
        if passed := "long" not in part.name or names.count(part.name) > 1:
            part.file(folder).write_text("1 passed")
        return Outcome(part, passed, 0.0, "1 passed" if passed else "1 failed")

    monkeypatch.setattr(proof, "run", run)
    monkeypatch.setattr(proof, "parts", lambda _: PARTS)
    monkeypatch.setattr(proof, "sources", lambda: "today")
    return names


def test_what_has_passed_is_not_run_again(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--output", str(tmp_path)]
    assert proof.main(options) == 1
    assert "FAILED tests/proof/test_b.py::long" in capsys.readouterr().out
    assert proof.main(options) == 0
    assert sorted(ran) == [PARTS[0].name, PARTS[1].name, PARTS[1].name]
    assert proof.main(options) == 0
    assert len(ran) == 3
    monkeypatch.setattr(proof, "sources", lambda: "tomorrow")
    assert proof.main(options) == 0
    assert len(ran) == 5


def test_no_part_is_begun_after_its_time(ran: list[str], tmp_path: Path) -> None:
    assert proof.main(["--output", str(tmp_path), "--minutes", "0"]) == 1
    assert ran == []


def test_a_long_test_is_a_part_and_short_ones_are_those_of_their_file() -> None:
    tests = [("a.py::long[1]", True), ("a.py::short", False), ("a.py::long[2]", True), ("a.py::other", False)]
    found = {part.name: part.tests for part in proof.grouped(tests)}
    short = {"a.py": ("a.py::short", "a.py::other")}
    assert found == {"a.py::long[1]": ("a.py::long[1]",), "a.py::long[2]": ("a.py::long[2]",), **short}


def test_one_part_with_servers_runs_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = [*PARTS, *(Part(f"tests/proof/test_soak.py::{name}", ()) for name in ("one", "two", "three"))]
    meeting, running, seen = Barrier(2, timeout=10), list[Part](), list[list[Part]]()

    def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        running.append(part)
        if len(seen) < 2 * len(PARTS):
            meeting.wait()
            seen.append([*running])
            meeting.wait()
        running.remove(part)
        return Outcome(part, True, 0.0, "")

    monkeypatch.setattr(proof, "run", run)
    ended = [each.part for each in proof.run_all(parts, 7, tmp_path, 2, float("inf"))]
    assert sorted(part.name for part in ended) == sorted(part.name for part in parts)
    assert all(sum(part.has_servers for part in each) == 1 for each in seen)


@pytest.mark.parametrize(("code", "kept"), [(0, False), (1, True), (2, False)], ids=["passed", "failed", "interrupted"])
def test_what_a_failed_part_has_written_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, code: int, kept: bool
) -> None:
    script = f"echo said; mkfifo $TMPDIR/pipe; echo wrote > $TMPDIR/it; exit {code}"
    monkeypatch.setattr(proof, "command", lambda *_: ["sh", "-c", script])
    outcome = proof.run(PARTS[0], 7, tmp_path, 0)
    assert outcome.passed is (code == 0)
    assert outcome.text.endswith("said\n")
    found = [*tmp_path.glob("*.files/it")]
    assert [file.read_text() for file in found] == ["wrote\n"] * kept


@pytest.fixture
def interrupts() -> Iterator[None]:
    """What is started hears of them, as the command sees to: what pytest is run by in the background does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_parts_end_with_their_command_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, interrupts: None
) -> None:
    memory, output, began = (tmp_path / name for name in ("memory", "output", "began"))
    memory.mkdir()
    output.mkdir()
    os.mkfifo(began)
    monkeypatch.setattr(proof, "MEMORY", memory)
    monkeypatch.setattr(proof, "NEEDED_BYTES", 0)
    scripts = {PARTS[0]: "exit", PARTS[1]: f"echo began > {began}; exec sleep 100"}
    monkeypatch.setattr(proof, "command", lambda part, _: ["sh", "-c", scripts[part]])
    outcomes = proof.run_all(PARTS, 7, output, 2, float("inf"))
    assert next(outcomes).part == PARTS[0]
    assert began.read_text() == "began\n"
    assert [*memory.iterdir()]
    outcomes.close()
    assert [*memory.iterdir()] == []


def test_the_command_finds_its_parts(tmp_path: Path) -> None:
    options = ["--minutes", "0", "--output", str(tmp_path), "tests/proof/test_worlds.py"]
    command = [sys.executable, "-m", "tests.proof", *options]
    found = subprocess.run(command, cwd=proof.ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    assert " parts, 0 of them have passed already" in found.stdout
    assert "0 have failed" in found.stdout
