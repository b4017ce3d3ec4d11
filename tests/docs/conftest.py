"""The broker that pages about Kafka are run against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spouts.local_broker import LocalBroker


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[LocalBroker]:
    """A running Kafka broker."""
    with LocalBroker() as broker:
        yield broker
