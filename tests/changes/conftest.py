"""Places for tables, those of servers among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changes.places import Place
from tests.contract.conftest import postgres_names, postgres_schema, postgres_sockets, redis_server
from tests.integration.postgres import url_of

__all__ = ["postgres_names", "postgres_schema", "postgres_sockets", "redis_server"]

# What it compares is shown where it differs.
pytest.register_assert_rewrite("tests.changes.keeping_staged", "tests.changes.running", "tests.changes.world")


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty one."""
    url = ""
    if request.param == "postgres":
        url = url_of(request.getfixturevalue("postgres_sockets"), request.getfixturevalue("postgres_schema"))
    if request.param == "redis":
        import redis

        url = request.getfixturevalue("redis_server").url
        with redis.Redis.from_url(url) as server:
            server.flushall()
    return Place(request.param, tmp_path, url)
