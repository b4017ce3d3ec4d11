"""Three processes share the tests of a run, and one display shows them."""

from __future__ import annotations

import re

import pytest

MEETING = """
    import os, pytest
    from pathlib import Path

    def write_process(name):
        with Path(name).open("a") as file: file.write(f"{{os.getpid()}} ")

    def test_meets_the_others():
        Path("{me}").touch()
        while not all(Path(other).exists() for other in "abc"): os.sched_yield()

    @pytest.mark.parametrize("text", ["\\udcff"])
    def test_is_named_by_no_text(text): assert len(text) == 1

    def test_fails(): assert "{me}" != "b"

    @pytest.mark.spark
    def test_with_spark(): write_process("spark")

    @pytest.mark.kafka
    def test_with_kafka(): write_process("kafka")
"""
DYING = """
    import os, pytest, signal

    @pytest.fixture(scope="session")
    def spark(): pass

    def test_before(): pass
    def test_that_dies(): os.kill(os.getpid(), signal.SIGKILL)
    def test_after(): print("printed by a test"); raise ValueError
    def test_last(spark): pass
"""


def test_three_processes_share_the_tests(inner: pytest.Pytester) -> None:
    """Each of three files waits for the others to begin; a failure in any process is shown, and counts. Tests of one
    server are in one process."""
    inner.makepyfile(**{f"test_{me}": MEETING.format(me=me) for me in "abc"})
    done = inner.runpytest_subprocess("--quiet", "-p", "tests.processes", "--sample", "--no-skips")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(passed=14, failed=1)
    assert re.findall(r"FAILED (\S+)", done.stdout.str()) == ["test_b.py::test_fails"]
    assert done.stdout.str().count("[100%]") == 1, "one display"
    for server in "spark", "kafka":
        pids = (inner.path / server).read_text().split()
        assert (len(pids), len(set(pids))) == (3, 1)
    assert re.search(r"\d s of processors in tests; the dearest files: test_[abc]\.py", done.stdout.str())


def test_a_process_that_dies_is_a_failure_and_is_replaced(inner: pytest.Pytester) -> None:
    inner.makepyfile(DYING)
    done = inner.runpytest_subprocess("--quiet", "-p", "tests.processes", "--sample")
    done.assert_outcomes(passed=2, failed=2)
    for line in "the process that ran it was ended by signal 9", "printed by a test", "starting Spark ...":
        assert line in done.stdout.str()
    stopped = inner.runpytest_subprocess("--quiet", "-p", "tests.processes", "--exitfirst")
    stopped.assert_outcomes(passed=1, failed=1)
    assert "stopping after 1 failures" in stopped.stdout.str()


def test_a_process_that_ends_between_tests_fails_the_run(inner: pytest.Pytester) -> None:
    ending = "\ndef pytest_runtest_setup(item):\n    import os\n    if item.name == 'test_two': os._exit(7)\n"
    inner.makeconftest((inner.path / "conftest.py").read_text() + "\n" + ending)
    inner.makepyfile("def test_one(): pass\ndef test_two(): pass\n")
    done = inner.runpytest_subprocess("--quiet", "-p", "tests.processes")
    assert done.ret != pytest.ExitCode.OK
    assert "ended with code 7" in done.stdout.str()
