"""What journeys share with the integration tests."""

from __future__ import annotations

import pytest

from tests.integration.console.test_pages import browser
from tests.unit.command_line import command, module

__all__ = ["browser", "command", "module"]

# What it compares is shown where it differs.
pytest.register_assert_rewrite("tests.journeys.journey")
