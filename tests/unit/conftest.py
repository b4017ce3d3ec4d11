"""Fixtures that several modules of these tests use."""

from collections.abc import Callable

import pytest

from tests.unit import poisoned
from tests.unit.command_line import command, module
from tests.unit.runner_bench import bench

__all__ = ["bench", "command", "cured", "module"]


@pytest.fixture
def cured(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called when bolts have learnt better."""
    return lambda: monkeypatch.setattr(poisoned, "CURED", True)
