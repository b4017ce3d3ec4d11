"""What integration tests share: the address of the broker, commands, and lines from bolts in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.integration.signals import Gate, Signals
from tests.unit.command_line import command, module

__all__ = ["command", "module"]


@pytest.fixture
def bootstrap(kafka_broker: LocalBroker) -> str:
    return kafka_broker.bootstrap


@pytest.fixture
def signals(tmp_path: Path) -> Iterator[Signals]:
    """Where bolts send lines to."""
    with Signals(tmp_path) as signals:
        yield signals


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate that bolts wait at."""
    return Gate(tmp_path)
