"""The scripts behind make, run as make runs them: which Java and which Python will do, and that a skip is red."""

from __future__ import annotations

import os
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


@pytest.fixture
def inner(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder with the rules for all tests, and pytest in this process: another one would take a second."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    markers = "\n".join(f"    {name}: {name}" for name in ("kafka", "long", "postgres", "redis", "sampled", "spark"))
    pytester.makeini(
        f"[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider -p no:faulthandler\nmarkers =\n{markers}"
    )
    return pytester


def test_a_skip_fails_where_none_is_allowed(inner: pytest.Pytester) -> None:
    skipping = "@pytest.mark.skip(reason='no server')\ndef test_skipped(): pass\n"
    inner.makepyfile(f"import pytest\ndef test_runs(): pass\n{skipping}")
    for arguments, expected in ([], 0), (["--no-skips"], 1):
        done = inner.runpytest_inprocess("--quiet", *arguments)
        assert done.ret == expected
        assert ("no server" in done.stdout.str()) == bool(expected)


def test_a_server_is_started_by_a_test_that_is_marked_alone(inner: pytest.Pytester) -> None:
    for name in ("initdb", "java", "redis-server"):
        program = inner.mkdir(name) / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    inner.makepyfile("""
        import subprocess
        import pytest

        def test_other(): subprocess.run(["true"], check=True)
        def test_database(): subprocess.run(["initdb/initdb"], check=True)
        def test_cache(): subprocess.run(["redis-server/redis-server"], check=True)
        def test_broker(): subprocess.run(["java/java"], check=True)

        @pytest.mark.postgres
        def test_marked_database(): subprocess.run(["initdb/initdb"], check=True)

        @pytest.mark.redis
        def test_marked_cache(): subprocess.run(["redis-server/redis-server"], check=True)

        @pytest.mark.kafka
        @pytest.mark.parametrize("program", ["java", "initdb"])
        def test_marked_broker(program): subprocess.run([f"{program}/{program}"], check=True)
    """)
    done = inner.runpytest_subprocess("--quiet")  # this test's own process has the rule for itself
    done.assert_outcomes(passed=4, failed=4)
    done.stdout.fnmatch_lines_random(
        [
            "*::test_database starts initdb: it needs @pytest.mark.postgres,*",
            "*::test_cache starts redis-server: it needs @pytest.mark.redis,*",
            "*::test_broker starts java: it needs @pytest.mark.kafka or @pytest.mark.registry or @pytest.mark.spark,*",
            "*::test_marked_broker?initdb? starts initdb: *",
        ]
    )


def test_each_nth_case_is_run_where_a_sample_will_do(inner: pytest.Pytester) -> None:
    cases = "@pytest.mark.parametrize('n', range(7))\n"
    some = f"@pytest.mark.sampled(3)\n{cases}def test_some(n): pass\n"
    table = f"@pytest.mark.sampled(3)\n@pytest.mark.parametrize('m', range(3))\n{cases}def test_table(m, n): pass\n"
    few = "@pytest.mark.sampled(9)\n@pytest.mark.parametrize('n', range(2))\ndef test_few(n): pass\n"
    marked = "import pytest\npytestmark = pytest.mark.sampled(2, tests=True)\n"
    tests = "".join(f"@pytest.mark.parametrize('n', range(2))\ndef test_{name}(n): pass\n" for name in "abcd")
    whole = "def test_e(): pass\ndef test_f(): pass\n@pytest.mark.long('test_e')\ndef test_g(): pass\n"
    inner.makepyfile(
        test_them=f"import pytest\n{cases}def test_all(n): pass\n{some}{table}{few}",
        test_file=marked + tests + whole,
        test_each=marked.replace(", tests=True", "") + whole,
    )
    sample = inner.runpytest_inprocess("--quiet", "--collect-only", "--sample").stdout.str()
    assert [n for n in range(7) if f"test_some[{n}]" in sample] == [0, 3, 6]
    assert {n for n in range(7) if f"test_table[{n}-" in sample} == set(range(7)), "each row"
    assert {m for m in range(3) if re.search(rf"test_table\[.-{m}\]", sample)} == set(range(3)), "each column"
    assert re.findall(r"test_few\[.\]", sample) == ["test_few[0]"], "one of each test"
    assert re.findall(r"test_([abcd]\[.\])", sample) == ["a[0]", "b[1]", "c[0]", "d[1]"]
    assert re.findall(r"(test_\w+\.py::test_[ef])\b", sample) == [
        "test_each.py::test_e",
        "test_each.py::test_f",
        "test_file.py::test_e",
    ]
    assert "test_g" not in sample, "another one catches the same"
    assert "25/51 tests collected (26 deselected)" in sample
    assert "51 tests collected" in inner.runpytest_inprocess("--quiet", "--collect-only").stdout.str()


def test_what_each_part_took_is_reported(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in ("unit/test_one.py", "integration/delta/test_one.py", "integration/delta/test_two.py"):
        (inner.path / file).parent.mkdir(parents=True, exist_ok=True)
        (inner.path / file).write_text("def test_passes(): pass\n")
    monkeypatch.setenv("TOOK", str(inner.path / "took"))
    for name, program in (("types", "true"), ("style", "false")):
        done = run([str(ROOT / "tools" / "timed.sh"), name, program], inner.path, **os.environ)
        assert done.returncode == (program == "false")
    told = inner.runpytest_inprocess("--quiet").outlines
    lines = [line.split(" s  ", 1)[1] for line in told if " s  " in line]
    tests = ["collecting the tests", "integration: delta, 2 tests", "unit, 1 tests"]
    assert lines == ["types", "style", *(f"{name} (0 s of processors)" for name in tests)]
    monkeypatch.delenv("TOOK")
    assert " s  " not in inner.runpytest_inprocess("--quiet").stdout.str()
    monkeypatch.setattr("tests.bill.LONG_S", 0.0)
    sample = inner.runpytest_inprocess("--quiet", "--sample").stdout.str()
    assert "most of it: 0.0 s " in sample
    assert re.search(r"3 tests took more than 0.0 s of it each: 0.0 s \S+::test_passes", sample)


def test_three_processes_share_the_tests(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three files waits for the others to begin; what fails in another process is shown, and counts. Tests of
    one server are in one process."""
    monkeypatch.delenv("TOOK", raising=False)
    meeting = """
        import os, time
        import pytest
        from pathlib import Path

        def test_meets_the_others():
            Path("{me}").write_text(str(os.getpid()))
            while not all(Path(other).exists() for other in "abc"): time.sleep(0.01)

        def test_is_in_the_first(): assert os.getpid() == FIRST

        @pytest.mark.spark
        def test_with_spark(): assert os.getpid() == FIRST

        @pytest.mark.kafka
        def test_with_kafka():
            with Path("kafka").open("a") as file: file.write(f"{{os.getpid()}} ")
    """
    inner.makepyfile(**{f"test_{me}": meeting.format(me=me) for me in "abc"})
    inner.makeconftest((inner.path / "conftest.py").read_text() + "\nimport builtins\nbuiltins.FIRST = os.getpid()\n")
    done = inner.runpytest_subprocess("--quiet", "-p", "tests.processes", "--sample")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    passed = [("", "5"), ("1 failed, ", "4"), ("1 failed, ", "1")]
    assert re.findall(r"(\d+ failed, )?(\d+) passed", done.stdout.str()) == passed
    assert len(set(re.findall(r"FAILED (test_[abc].py::test_is_in_the_first)", done.stdout.str()))) == 2
    assert len(set((inner.path / "kafka").read_text().split())) == 1
    assert re.search(r"s of processor time; most of it: .* test_[abc]\.py, .* test_[abc]\.py", done.stdout.str())


def test_what_runs_at_once_is_shown_in_order_and_fails_when_one_does(tmp_path: Path) -> None:
    at_once = str(ROOT / "tools" / "at_once.sh")
    done = run([at_once, "until [ -e there ]; do :; done; echo first", "echo second; touch there"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n")
    done = run([at_once, "echo wrong >&2; exit 3", "echo right"], tmp_path)
    assert (done.returncode, done.stdout) == (1, "wrong\nright\n")
    busy = run([at_once, "python3 -c 'import time\nwhile time.process_time() < 0.1: pass'"], tmp_path, BUDGET_S="9")
    assert re.fullmatch(r"took \d s, the processors [0-5]\.[1-9] s; on two quiet ones it has 9 s\n", busy.stdout)


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
