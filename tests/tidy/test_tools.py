"""The scripts behind make, run as make runs them: which Java and which Python will do, and that a skip is red."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The finished command, its output as text."""
    environment = {"PATH": "/usr/bin:/bin", **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


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
    done = run(["sh", str(script)], tmp_path, PYTHON=str(tmp_path / "python2"))
    assert done.returncode == 1
    assert done.stderr.startswith("transactional: Python 3.11, 3.12 or 3.13 is needed")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("arguments", "expected"), [([], 0), (["--no-skips"], 1)])
def test_a_skip_fails_where_none_is_allowed(tmp_path: Path, arguments: list[str], expected: int) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    skipping = "import pytest\ndef test_runs(): pass\n@pytest.mark.skip(reason='no server')\ndef test_skipped(): pass\n"
    (tmp_path / "test_sample.py").write_text(skipping)
    command = [sys.executable, "-m", "pytest", "--quiet", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    done = run([*command, *arguments], tmp_path, PATH=os.environ["PATH"])
    assert done.returncode == expected
    assert ("no server" in done.stdout) == bool(expected)


def test_each_nth_case_is_run_where_a_sample_will_do(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = sampled: sampled\n")
    cases = "@pytest.mark.parametrize('n', range(7))\n"
    some = f"@pytest.mark.sampled(3)\n{cases}def test_some(n): pass\n"
    table = f"@pytest.mark.sampled(3)\n@pytest.mark.parametrize('m', range(3))\n{cases}def test_table(m, n): pass\n"
    (tmp_path / "test_them.py").write_text(f"import pytest\n{cases}def test_all(n): pass\n{some}{table}")
    marked = "import pytest\npytestmark = pytest.mark.sampled(2)\n"
    tests = "".join(f"@pytest.mark.parametrize('n', range(2))\ndef test_{name}(n): pass\n" for name in "abcd")
    (tmp_path / "test_file.py").write_text(marked + tests)
    command = [sys.executable, "-m", "pytest", "--quiet", "--collect-only", "-p", "no:cacheprovider"]
    sample = run([*command, "--sample"], tmp_path, PATH=os.environ["PATH"]).stdout
    assert [n for n in range(7) if f"test_some[{n}]" in sample] == [0, 3, 6]
    assert {n for n in range(7) if f"test_table[{n}-" in sample} == set(range(7)), "each row"
    assert {m for m in range(3) if re.search(rf"test_table\[.-{m}\]", sample)} == set(range(3)), "each column"
    assert re.findall(r"test_([abcd]\[.\])", sample) == ["a[0]", "b[1]", "c[0]", "d[1]"]
    assert "21/43 tests collected (22 deselected)" in sample
    assert "43 tests collected" in run(command, tmp_path, PATH=os.environ["PATH"]).stdout


def test_what_each_part_took_is_told(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    for file in ("unit/test_one.py", "integration/test_delta_one.py", "integration/test_delta_two.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("def test_passes(): pass\n")
    bill = {"PATH": os.environ["PATH"], "TOOK": str(tmp_path / "took")}
    for name, program in (("types", "true"), ("style", "false")):
        done = run([str(ROOT / "tools" / "timed.sh"), name, program], tmp_path, **bill)
        assert done.returncode == (program == "false")
    command = [sys.executable, "-m", "pytest", "--quiet", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    lines = [line.split(" s  ", 1)[1] for line in run(command, tmp_path, **bill).stdout.splitlines() if " s  " in line]
    assert lines == ["types", "style", "collecting the tests", "integration: delta, 2 tests", "unit, 1 tests"]
    assert " s  " not in run(command, tmp_path, PATH=os.environ["PATH"]).stdout


def test_what_runs_at_once_is_shown_in_order_and_fails_when_one_does(tmp_path: Path) -> None:
    at_once = str(ROOT / "tools" / "at_once.sh")
    done = run([at_once, "until [ -e there ]; do :; done; echo first", "echo second; touch there"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")
    done = run([at_once, "echo wrong >&2; exit 3", "echo right"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "wrong\nright\n")
