"""Each command over each source into tables of each kind alone, on real servers; a part for each source.

`make test-all` travels with tables of several kinds at once, and meets each pair.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts.local_broker import LocalBroker
from spouts.local_registry import LocalRegistry
from tests.contract.conftest import postgres_sockets, redis_server
from tests.contract.redis_server import RedisServer
from tests.integration.postgres import new_schema
from tests.journeys.journey import MASTER
from tests.journeys.matrix import COMMANDS, QUEUE, SOURCES, STATES
from tests.journeys.sales import SLIDING, TUMBLING
from tests.journeys.steps import travel
from tests.unit.command_line import Command, command, module

__all__ = ["command", "module", "postgres_sockets", "redis_server"]


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.registry
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.parametrize("name", [name for name in SOURCES if name != QUEUE])
def test_journeys(
    name: str,
    tmp_path: Path,
    kafka_broker: LocalBroker,
    schema_registry: LocalRegistry,
    redis_server: RedisServer,
    postgres_sockets: Path,
    spark: SparkSession,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    counts: Counter[str],
) -> None:
    for number, state in enumerate(STATES):
        schema = f"journey_{SOURCES.index(name)}_{number}"
        given = {
            "WINDOWS": f"{TUMBLING},{SLIDING}",
            "BOOTSTRAP": kafka_broker.bootstrap,
            "REGISTRY": schema_registry.url,
            "POSTGRES": new_schema(postgres_sockets, schema),
            "TOPICS": f"{schema}-",
            "REDIS": redis_server.url,
        }
        redis_server.client().flushdb()
        folder = tmp_path / schema
        folder.mkdir()
        monkeypatch.chdir(folder)
        travel(name, (state,), given, MASTER if number % 2 else "none", folder, command, monkeypatch)
        counts["cells of commands, sources and states"] += len(COMMANDS)
