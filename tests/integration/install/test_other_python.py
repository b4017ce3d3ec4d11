"""A part of the tests without servers, on the newest Python of this machine; all others run on that of `make`."""

from __future__ import annotations

import pytest

from tests.integration.install.test_wheel import OTHER_PYTHON, run
from tests.tidy.files import ROOT

FOLDERS = ("model/arrow", "runtime/tasks", "runtime/processing", "runtime/commit", "topology")
"""Of tests/unit: what runs in tasks, and what reads annotations and signatures."""


@pytest.mark.long("tests/integration/install/test_wheel.py")
def test_the_tests_of_the_inner_rooms_pass() -> None:
    assert OTHER_PYTHON.exists(), "there is no .venv/newest: `make test` sets it up"
    rooms = [ROOT / "tests" / "unit" / name for name in FOLDERS]
    options = ("--quiet", "--no-skips", "--sample", "--hypothesis-profile=check", "-p", "no:cacheprovider")
    printed = run(OTHER_PYTHON, "-m", "pytest", *options, "-m", "not redis and not postgres", *rooms)
    assert " passed" in printed
