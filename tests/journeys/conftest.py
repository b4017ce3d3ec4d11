"""What journeys share with the integration tests."""

from __future__ import annotations

from tests.integration.conftest import spark
from tests.integration.test_console import browser
from tests.unit.command_line import command, module

__all__ = ["browser", "command", "module", "spark"]
