"""`make proof` runs what is stale, in order and within its budget, and continues where it was interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from tests.proof import __main__ as proof
from tests.proof import parts, record, running
from tests.proof.entries import UNKNOWN_S, Entry, Proof, read_numbers, write_numbers
from tests.proof.loading import LINE, VARIABLE
from tests.proof.page import page_of
from tests.proof.parts import LOCK, Digests, Part, grouped
from tests.proof.promises import PROMISES
from tests.proof.record import alone
from tests.proof.running import Outcome, Proved, run_all
from tests.resuming import ROOT

ONE, TWO = (
    Part("tests/proof/test_avro.py::one", ("a::one",)),
    Part("tests/proof/test_changes.py::long[2]", ("b::long[2]",)),
)
THREE = Part("tests/proof/test_changes.py::long[3]", ("b::long[3]",))
PARTS = [ONE, TWO, THREE]


CODE = {
    LOCK: "",
    ".gitignore": "",
    "house/one.py": "",
    "house/two.py": "",
    "house/three.py": "",
    "tests/proof/test_avro.py": "import house.one",
    "tests/proof/test_changes.py": "import house.two\nimport house.three",
}
OWN = {ONE: "house/one.py", TWO: "house/two.py", THREE: "house/three.py"}
"""The module that the processes of a part load beside its tests."""


def code(folder: Path) -> Path:
    """A repository with the tests of three parts."""
    for name, text in CODE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


class Runs:
    """The command with three parts; parts that are in `failing` fail, and the code of others changes meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.ran, self.failing, self.meanwhile = list[tuple[str, int]](), set[Part](), set[Part]()
        self.root, self.now = code(folder / "code"), "2026-11-25T10:00Z"
        self.parts, self.file, self.names_files = [*PARTS], folder / "proof.json", True

    def change(self, *parts: Part) -> None:
        for part in parts:
            with (self.root / OWN[part]).open("a") as file:
                file.write("1\n")

    def run(self, part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        self.ran.append((part.name, seed))
        self.change(*self.meanwhile.intersection([part]))
        loaded = frozenset([part.module, OWN[part]] if self.names_files else [])
        return Outcome(part, part not in self.failing, 50.0, "said", Proved((), {"worlds": 5}, 40.0), loaded)

    def call(self, *options: str) -> list[str]:
        """The parts that were run, in their order."""
        self.ran.clear()
        self.exit_code = proof.main(
            ["--record", f"{self.file}", "--output", f"{self.file.parent}", "--at-once", "1", *options]
        )
        return [name for name, _ in self.ran]

    @property
    def kept(self) -> Proof:
        return Proof.read(self.file)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runs:
    runs = Runs(tmp_path)
    monkeypatch.setattr(running, "run", runs.run)
    monkeypatch.setattr(proof, "parts", lambda: runs.parts)
    monkeypatch.setattr(proof, "Digests", lambda: Digests(runs.root))
    monkeypatch.setattr(proof, "commit_of", lambda: "abc")
    monkeypatch.setattr(record, "now", lambda: runs.now)
    return runs


NAMES = [part.name for part in PARTS]


def test_what_has_passed_is_run_again_once_what_it_stands_on_has_changed(runs: Runs) -> None:
    assert runs.call() == NAMES
    assert runs.exit_code == 0
    assert list(runs.kept.parts) == sorted(NAMES)
    before = runs.kept.parts[TWO.name]
    files = frozenset([LOCK, TWO.module, "house/two.py"])
    digest = Digests(runs.root).of(TWO, files)
    assert before == Entry(True, digest, "abc", runs.now, proof.SEED, 50.0, 40.0, {"worlds": 5}, files)
    assert runs.call() == []
    runs.change(TWO)
    runs.now = "2026-11-26T10:00Z"
    assert runs.call("--budget", "0s") == []
    assert runs.kept.stale == {"tests/proof/test_changes.py::long": 1}
    assert runs.call() == [TWO.name]
    assert runs.kept.stale == {}
    assert runs.kept.parts[TWO.name] == replace(before, digest=Digests(runs.root).of(TWO, files), at=runs.now)


def test_a_part_that_has_not_named_its_files_is_not_noted(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Else no change would make it stale."""
    runs.names_files = False
    assert runs.call() == NAMES
    assert "not noted: its processes have not named the files that they load" in capsys.readouterr().out
    assert not any(runs.kept.parts.values())


def test_a_part_that_has_failed_is_noted_as_such_and_comes_first(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.call()
    runs.failing = {THREE}
    runs.change(THREE)
    assert (runs.call(), runs.exit_code) == ([THREE.name], 1)
    assert f"FAILED {THREE.name}" in capsys.readouterr().out
    kept = runs.kept.parts[THREE.name]
    assert kept is not None
    assert not kept.passed
    runs.change(ONE)
    assert (runs.call(), runs.exit_code) == ([THREE.name, ONE.name], 1)
    runs.failing.clear()
    assert (runs.call(), runs.exit_code) == ([THREE.name], 0)


def test_a_part_that_fails_with_another_seed_has_not_passed(runs: Runs) -> None:
    runs.call()
    assert runs.call("--seed", str(proof.SEED)) == []
    runs.failing = {ONE}
    assert runs.call("--seed", "8") == NAMES
    assert {seed for _, seed in runs.ran} == {8}
    assert runs.call("--seed", "8") == [ONE.name]
    assert runs.call() == [ONE.name]


def test_parts_that_never_passed_come_before_stale_ones_and_of_these_the_oldest_first(runs: Runs) -> None:
    runs.parts = [TWO, ONE]
    for day, part in enumerate((TWO, ONE), 20):
        runs.now = f"2026-11-{day}T10:00Z"
        assert runs.call(part.name) == [part.name]
    runs.change(*PARTS)
    runs.parts = [*PARTS]
    assert runs.call() == [THREE.name, TWO.name, ONE.name]


def test_no_part_is_begun_that_takes_longer_than_the_budget(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.call("--budget", f"{UNKNOWN_S - 1:.0f}s") == []
    monkeypatch.setattr("tests.proof.__main__.time.monotonic", lambda: 50.0 * len(runs.ran))
    # Then one of the same kind is known to take 50 s.
    assert runs.call("--budget", "150s") == NAMES[:2] + NAMES[2:]
    runs.change(*PARTS)
    assert runs.call("--budget", "149s") == NAMES[:2]
    assert runs.call("--budget", "49s") == []
    assert runs.kept.stale == {"tests/proof/test_changes.py::long": 1}


def test_what_fits_is_begun_before_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run", lambda part, *_: Outcome(part, True, 0.0, ""))
    ended = run_all(PARTS, 7, tmp_path, 1, lambda part: part is not ONE)
    assert [outcome.part for outcome in ended] == [TWO, THREE]


def test_what_has_passed_over_code_that_changed_meanwhile_is_not_noted(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.parts, runs.meanwhile = [ONE, TWO], {ONE}
    assert runs.call() == NAMES[:2]
    assert "not noted: house/one.py: changed meanwhile" in capsys.readouterr().out
    assert {name for name, entry in runs.kept.parts.items() if entry} == {TWO.name}
    runs.meanwhile.clear()
    assert runs.call() == [ONE.name]


def test_each_pass_is_noted_at_once(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def killed(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        seen.append(sum(entry is not None for entry in runs.kept.parts.values()))
        if part is THREE:
            raise KeyboardInterrupt
        return runs.run(part, seed, folder, processor)

    monkeypatch.setattr(running, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        runs.call()
    assert seen == [0, 1, 2]
    assert [name for name, entry in runs.kept.parts.items() if entry] == NAMES[:2]


def test_there_is_one_run_at_a_time(runs: Runs, tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(SystemExit, match="another run"):
        runs.call()
    assert not runs.file.exists()
    assert runs.call() == NAMES


def test_what_others_have_noted_meanwhile_is_kept(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a commit that is merged."""
    other = Entry(True, "today", "def", runs.now, 8, 1.0, files=frozenset(["other.py"]))

    def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        kept = runs.kept
        runs.file.write_text(replace(kept, parts={**kept.parts, THREE.name: other}).text())
        return runs.run(part, seed, folder, processor)

    monkeypatch.setattr(running, "run", run)
    runs.call(ONE.name)
    assert runs.kept.parts[THREE.name] == other


def test_the_page_adds_up_what_the_file_says(runs: Runs) -> None:
    runs.call(ONE.name, TWO.name)
    runs.change(TWO)
    runs.failing = {THREE}
    runs.call("--budget", "0s")
    page = runs.file.with_suffix(".md").read_text()
    assert page == page_of(runs.kept)
    assert "3 parts: 1 were current, 1 older than the code they stand on, 0 had failed, and 1 had never run. " in page
    assert "Those that have passed took 1 minutes of processors.\n" in page
    assert "| `test_changes.py`: long | 2 | 0 | 1 | 1 | 2026-11-25 | 0.7 min | 5 worlds |" in page
    assert "or are dead letters | 1 of 1 | 1 | 2026-11-25 | `abc` |" in page
    assert "or is refused | 1 of 2 | 0 | never |  |" in page
    runs.call(THREE.name)
    page = runs.file.with_suffix(".md").read_text()
    assert "1 had failed, and 0 had never run. " in page
    assert f"\n\nFailed:\n\n- `{THREE.name}`\n\n|" in page


def test_parts_that_are_no_more_are_forgotten(runs: Runs) -> None:
    runs.call()
    runs.parts = [ONE]
    assert runs.call() == []
    assert list(runs.kept.parts) == [ONE.name]


def test_the_length_of_all_parts_is_what_they_took_or_others_of_their_kind(runs: Runs) -> None:
    entry = Entry(True, "today", "abc", runs.now, 7, 7_000.0)
    assert proof.length(Proof({TWO.name: entry, THREE.name: None, ONE.name: None}), 2) == (
        f"all parts take 1 h {(14_000 + UNKNOWN_S) / 2 / 60 - 60:02.0f} min, 2 at a time"
    )


def test_a_digest_is_of_the_tests_the_loaded_modules_and_what_is_installed(tmp_path: Path) -> None:
    root = code(tmp_path)
    files = Digests(root).files(TWO, [TWO.module, "house/two.py", "house/one.py"])
    assert files == {LOCK, TWO.module, "house/two.py"}, "one.py was loaded, but the tests can't reach it"
    seen = [Digests(root).of(TWO, files), Digests(root).of(replace(TWO, tests=("b::long[2]", "more")), files)]
    (root / "house/three.py").write_text("changed")
    assert Digests(root).of(TWO, files) == seen[0]
    for name in files:
        (root / name).write_text(f"{name} = 1")
        seen.append(Digests(root).of(TWO, files))
    assert len(set(seen)) == 5


def test_a_process_names_the_files_that_it_loads_before_it_is_killed(tmp_path: Path) -> None:
    """So does each that it starts: what is started inherits the variable, and the line is run by its Python, too."""
    script = f"{LINE}import os, signal, tests.resuming\nos.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, VARIABLE: f"{tmp_path}/loaded"}
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "tests/resuming.py" in (tmp_path / "loaded").read_text().splitlines()


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([1, 0, 3, 5, 4], "0-1,3-5")])
def test_numbers_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert write_numbers(numbers) == text
    assert list(read_numbers(text)) == sorted(numbers)


def test_files_keep_their_numbers_as_long_as_a_part_stands_on_them(tmp_path: Path) -> None:
    def written(before: Proof, **files: list[str]) -> Proof:
        parts = {name: Entry(True, "", "", "", 7, 1.0, files=frozenset(some)) for name, some in files.items()}
        (tmp_path / "proof.json").write_text(replace(before, parts=parts).text())
        return Proof.read(tmp_path / "proof.json")

    first = written(Proof(), one=["m", "n"], two=["x"])
    assert first.files == ("m", "n", "x")
    second = written(first, one=["a", "n", "m"], two=["x"])
    assert second.files == ("m", "n", "x", "a")
    assert {name: entry.files for name, entry in second.parts.items() if entry} == {"one": {*"amn"}, "two": {"x"}}
    assert written(second, one=["a", "m"]).files == ("m", "a")


def test_a_long_test_is_a_part_and_short_ones_are_those_of_their_function() -> None:
    tests = [
        Part("a.py::long[1]", ("a.py::long[1]",)),
        Part("a.py::short", ("a.py::short[1]",), frozenset(["spark"])),
        Part("a.py::short", ("a.py::short[2]",), frozenset(["seed"]), has_servers=True),
    ]
    both = Part("a.py::short", ("a.py::short[1]", "a.py::short[2]"), frozenset(["spark", "seed"]), has_servers=True)
    assert grouped(tests) == [tests[0], both]


def test_one_part_with_servers_runs_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    servers = [Part(f"tests/proof/test_soak.py::{name}", (), has_servers=True) for name in ("one", "two", "three")]
    parts = [*servers, *PARTS[:2]]
    meeting, now, seen = Barrier(2, timeout=10), list[Part](), list[list[Part]]()

    def run(part: Part, seed: int, folder: Path, processor: int) -> Outcome:
        now.append(part)
        if len(seen) < 4:
            meeting.wait()
            seen.append([*now])
            meeting.wait()
        now.remove(part)
        return Outcome(part, True, 0.0, "")

    monkeypatch.setattr(running, "run", run)
    ended = [each.part for each in run_all(parts, 7, tmp_path, 2, lambda _: True)]
    assert sorted(part.name for part in ended) == sorted(part.name for part in parts)
    assert all(sum(part.has_servers for part in each) == 1 for each in seen)


@pytest.mark.parametrize(("code", "kept"), [(0, False), (1, True), (2, False)], ids=["passed", "failed", "interrupted"])
def test_what_a_failed_part_has_written_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, code: int, kept: bool
) -> None:
    script = f"echo said; mkfifo $TMPDIR/pipe; echo wrote > $TMPDIR/it; exit {code}"
    monkeypatch.setattr(running, "command", lambda *_: ["sh", "-c", script])
    outcome = running.run(ONE, 7, tmp_path, 0)
    assert outcome.passed is (code == 0)
    assert outcome.text.endswith("said\n")
    found = [*tmp_path.glob("*.files/it")]
    assert [file.read_text() for file in found] == ["wrote\n"] * kept
    monkeypatch.setattr(running, "command", lambda *_: ["true"])
    assert running.run(ONE, 7, tmp_path, 0).passed
    assert [path.suffix for path in tmp_path.iterdir()] == [".txt"]


def test_what_a_part_has_proved_comes_from_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = """echo '{"lines": ["a line"], "counts": {"worlds": 3}, "processors_s": 0.5}' > $TMPDIR/proved.json"""
    monkeypatch.setattr(running, "command", lambda *_: ["sh", "-c", script])
    outcome = running.run(ONE, 7, tmp_path, 0)
    assert outcome.proved == Proved(["a line"], {"worlds": 3}, 0.5)
    assert str(outcome).splitlines()[1].strip() == "a line"


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
    monkeypatch.setattr(running, "MEMORY", memory)
    monkeypatch.setattr(running, "NEEDED_BYTES", 0)
    scripts = {ONE: "exit", TWO: f"echo began > {began}; exec sleep 100"}
    monkeypatch.setattr(running, "command", lambda part, *_: ["sh", "-c", scripts[part]])
    outcomes = run_all([ONE, TWO], 7, output, 2, lambda _: True)
    assert next(outcomes).part == ONE
    assert began.read_text() == "began\n"
    assert [*memory.iterdir()]
    outcomes.close()
    assert [*memory.iterdir()] == []


def test_a_test_of_pytest_is_a_part_of_its_file(request: pytest.FixtureRequest) -> None:
    node = request.node
    assert parts.test_of(node) == Part("tests/unit/test_proof_parts.py", (node.nodeid,), frozenset(["request"]))


@pytest.mark.long("test_a_test_of_pytest_is_a_part_of_its_file; `make test` collects tests/proof, too")
def test_the_command_finds_its_parts(tmp_path: Path) -> None:
    options = ["--budget", "0s", "--output", f"{tmp_path}", "--record", f"{tmp_path}/proof.json"]
    found = subprocess.run(
        [sys.executable, "-m", "tests.proof", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert "0 have passed, 0 have failed; all parts take " in found.stdout
    kept = Proof.read(tmp_path / "proof.json")
    assert len(kept.parts) > 200
    assert "tests/proof/test_crash_points.py" in kept.parts, "its short tests are one part"
    page = (tmp_path / "proof.md").read_text()
    assert all(f"| {promise} | 0 of " in page for promise in PROMISES)
    assert not any(kept.parts.values())
