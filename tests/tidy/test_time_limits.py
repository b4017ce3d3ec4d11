"""What hangs ends, wherever it hangs; the message names the fixture."""

from __future__ import annotations

import re

import pytest

HANGING = """
    import threading
    import pytest

    def topology(): threading.Event().wait()

    @pytest.fixture(scope="session")
    def earlier(): pass

    @pytest.fixture(scope="session")
    def of_session(earlier):
        threading.Thread(target=topology).start()
        topology()

    @pytest.fixture(scope="module")
    def of_module(earlier):
        try: topology()
        finally: topology()

    @pytest.fixture
    def torn_down():
        yield
        topology()

    def test_1(of_session): pass
    def test_2(of_session): pass
    def test_3(of_module): pass
    def test_4(torn_down): raise ValueError("of test 4")
    def test_5(): topology()
    def test_6(): pass
"""


def test_what_hangs_ends(inner: pytest.Pytester) -> None:
    """A topology in a fixture, its clean-up, the tear-down after a failure, a thread at the end; and when too many
    hang, the rest is not run."""
    limits = "from tests import time_limits\ntime_limits.AGAIN_S, time_limits.HUNG_MAX = 0.2, 4\n"
    inner.makeconftest((inner.path / "conftest.py").read_text() + "\n" + limits)
    inner.makeini("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider\ntimeout = 0.2")
    inner.makepyfile(HANGING)
    done = inner.runpytest_subprocess("--quiet", timeout=240)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    text = done.stdout.str()
    for scope in "session", "module":
        line = (
            rf"Failed: fixture `of_{scope}` \(scope {scope}, \S+\.py:\d+\) was not set up in time: Timeout \(>0\.2s\)"
        )
        assert len(re.findall(f"^E +{line}", text, re.MULTILINE)) == 2, "for two tests; in itself and in its clean-up"
    assert re.findall(r"^(FAILED|ERROR) \S+::test_(\d)", text, re.MULTILINE) == [
        *(("FAILED", "4"), ("FAILED", "5")),
        *(("ERROR", "1"), ("ERROR", "2"), ("ERROR", "3"), ("ERROR", "4")),
    ]
    assert "4 tests have hung: " in text
