"""Spouts over the broker, which a test need not close."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spouts.kafka.spout import KafkaSpout
from tests.integration.kafka_topics import TIMEOUT_MS, Opened


@pytest.fixture
def opened(bootstrap: str) -> Iterator[Opened]:
    """Makes open spouts of records whose values are strings, if nothing else is said."""
    spouts: list[KafkaSpout] = []

    def make(kind: type[KafkaSpout], topics: Any, **options: Any) -> KafkaSpout:
        plain = {} if "translator" in options else {"value_type": "string"}
        spouts.append(kind(bootstrap, topics, **{"timeout_ms": TIMEOUT_MS, **plain, **options}))
        spouts[-1].open()
        return spouts[-1]

    yield make
    for spout in spouts:
        spout.close()
