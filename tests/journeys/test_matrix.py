"""Each command, over each source, into each kind of state, on real servers; and the refusals."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts.local_broker import LocalBroker
from spouts.local_registry import LocalRegistry
from tests.contract.redis_server import RedisServer
from tests.integration.postgres import url_of
from tests.journeys.journey import MASTER
from tests.journeys.matrix import (
    BY_SINK,
    BY_SOURCE,
    BY_STATE,
    COMMANDS,
    INTO_STATE,
    JOURNEYS,
    JOURNEYS_TO_SINKS,
    QUEUE,
    SINKS,
    SOURCES,
    STATES,
    WORKS,
)
from tests.journeys.sales import SLIDING, TUMBLING
from tests.journeys.steps import travel
from tests.unit.command_line import Command


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.registry
@pytest.mark.postgres
@pytest.mark.redis
@pytest.mark.sampled(len(JOURNEYS))
@pytest.mark.parametrize(
    "number",
    range(len(JOURNEYS)),
    ids=[f"{name}-{states[0]}{f'-{sink.strip(chr(96))}' if sink else ''}" for name, states, sink in JOURNEYS],
)
def test_a_journey(
    number: int,
    tmp_path: Path,
    kafka_broker: LocalBroker,
    schema_registry: LocalRegistry,
    redis_server: RedisServer,
    postgres_sockets: Path,
    postgres_schema: str,
    spark: SparkSession,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, states, sink = JOURNEYS[number]
    given = {
        "WINDOWS": (TUMBLING, SLIDING)[(number + number // 2) % 2],
        "BOOTSTRAP": kafka_broker.bootstrap,
        "REGISTRY": schema_registry.url,
        "POSTGRES": url_of(postgres_sockets, postgres_schema),
        "TOPICS": f"{postgres_schema}-",
        "REDIS": redis_server.url,
    }
    redis_server.client().flushdb()
    master = MASTER if number % 4 == 1 else "none"
    if number % 3 == 0:  # over four of the sources, into each kind of state
        given["TRANSACTIONAL_PROCESSING"] = "workers" if master == "none" else "auto"
    travel(name, states, given, master, tmp_path, command, monkeypatch, sink)


def test_every_pair_is_met_and_every_exception_is_of_a_pair() -> None:
    alone = [(source, states) for source, states, sink in JOURNEYS if not sink]
    met = [(command, source, state) for source, states in alone for command, state in product(COMMANDS, states)]
    commands, sources, states = map(set, zip(*met, strict=True))
    assert (commands, sources, states) == (set(COMMANDS), {*SOURCES} - {QUEUE}, set(STATES))
    assert {each[:2] for each in met} == {*product(commands, sources)}
    assert {each[::2] for each in met} == {*product(commands, states)}
    assert {each[1:] for each in met} == {*product(sources, states)}
    assert set(BY_SOURCE) <= {*product(COMMANDS, SOURCES)}
    assert set(BY_STATE) <= {*product(COMMANDS, STATES)}
    assert set(BY_SINK) <= {*product(COMMANDS, SINKS)}
    to_sinks = {(sink, state) for _, states, sink in JOURNEYS_TO_SINKS for state in states}
    assert to_sinks == {*product(SINKS, STATES)}
    assert set(INTO_STATE) == {*product([QUEUE], STATES)}
    assert WORKS not in {*BY_SOURCE.values(), *BY_STATE.values(), *BY_SINK.values()}
