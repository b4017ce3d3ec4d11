"""The scripts behind make, run as make runs them: which Java and which Python will do, and that a skip is red."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished command, its output as text."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def check_java(folder: Path, banner: str) -> subprocess.CompletedProcess[str]:
    """What the check says to a Java whose `-version` prints the banner."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{banner}\nOpenJDK Runtime Environment (build x)\nEND\n")
    java.chmod(0o755)
    return run([str(ROOT / "tools" / "check_java.sh")], folder, JAVA_HOME=str(folder))


@pytest.mark.parametrize("version", ["17.0.15", "17", "21-ea", "25.0.1"])
def test_a_new_enough_java_is_taken_without_a_word(tmp_path: Path, version: str) -> None:
    done = check_java(tmp_path, f'openjdk version "{version}" 2025-04-15')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("banner", "expected"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_292"', "is Java 8"),
        ("Unable to locate a Java Runtime.", "did not answer with a version"),
    ],
)
def test_another_java_ends_with_one_sentence(tmp_path: Path, banner: str, expected: str) -> None:
    done = check_java(tmp_path, banner)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "install a JDK" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_java_ends_with_one_sentence(tmp_path: Path) -> None:
    done = run([str(ROOT / "tools" / "check_java.sh")], tmp_path, JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1


def test_an_unsuitable_python_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    script = tmp_path / "tools" / "make_venv.sh"
    script.write_text((ROOT / "tools" / "make_venv.sh").read_text())
    done = run(["sh", str(script), "run"], tmp_path, PYTHON=str(tmp_path / "python2"))
    assert done.returncode == 1
    assert done.stderr.startswith("transactional: Python 3.11, 3.12 or 3.13 is needed")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


def test_a_skip_fails_where_none_is_allowed(inner: pytest.Pytester) -> None:
    skipping = "@pytest.mark.skip(reason='no server')\ndef test_skipped(): pass\n"
    inner.makepyfile(f"import pytest\ndef test_runs(): pass\n{skipping}")
    for arguments, expected in ([], 0), (["--no-skips"], 1):
        done = inner.runpytest_inprocess("--quiet", *arguments)
        assert done.ret == expected
        assert ("no server" in done.stdout.str()) == bool(expected)


def test_what_runs_at_once_is_shown_in_order_and_fails_when_one_does(tmp_path: Path) -> None:
    at_once = str(ROOT / "tools" / "at_once.sh")
    done = run([at_once, "until [ -e there ]; do :; done; echo first", "echo second; touch there"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")
    done = run([at_once, "echo wrong >&2; exit 3", "echo right"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "wrong\nright\n")
    busy = run([at_once, "python3 -c 'import time\nwhile time.process_time() < 1: pass'"], tmp_path, LIMITS="9 s")
    assert re.fullmatch(r"took \d+ s, the processors [1-5] s; two quiet ones have 9 s\n", busy.stdout)


@pytest.mark.parametrize("program", ["postgres", "pgbouncer", "redis", "strace", "chromium", "promtool", "npm"])
def test_a_missing_program_ends_with_one_sentence(tmp_path: Path, program: str) -> None:
    script = tmp_path / "ensure.sh"
    script.write_text(re.sub(r"\bfolders=.*", "folders=", (ROOT / "tools" / "ensure.sh").read_text()))
    done = run(["/bin/sh", str(script), program], tmp_path, PATH=str(without_packages(tmp_path)))
    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("named", ["chromium-browser", "somewhere"])
def test_a_chromium_that_the_tests_would_find_is_enough(tmp_path: Path, named: str) -> None:
    programs = without_packages(tmp_path)
    program = programs / named
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    environment = {"CHROMIUM": str(program)} if named == "somewhere" else {}
    done = run([str(ROOT / "tools" / "ensure.sh"), "chromium"], tmp_path, PATH=str(programs), **environment)
    assert (done.returncode, done.stderr) == (0, "")


def without_packages(folder: Path) -> Path:
    """Of all programs only those that the script itself calls: nothing is installed, and nothing found."""
    programs = folder / "programs"
    programs.mkdir()
    for each in ("sh", "tr", "id"):
        (programs / each).symlink_to(str(shutil.which(each)))
    return programs
