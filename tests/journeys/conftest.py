"""What journeys share with the integration tests."""

from __future__ import annotations

import pytest

from tests.contract.conftest import postgres_names, postgres_schema, postgres_sockets, redis_server
from tests.integration.console.test_pages import browser
from tests.unit.command_line import command, module

__all__ = ["browser", "command", "module", "postgres_names", "postgres_schema", "postgres_sockets", "redis_server"]

# What they compare is shown where it differs.
pytest.register_assert_rewrite("tests.journeys.journey", "tests.journeys.steps")
