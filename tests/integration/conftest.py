"""The real things that integration tests share: each starts once for a whole run of pytest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spouts.local_broker import LocalBroker
from tests.integration.programs import JAVA_OPTIONS
from tests.integration.signals import Gate, Signals
from transactional.spark_session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A Spark session with the framework's defaults, shared: don't stop it. Two cores, four tries of a task, one
    of a stage."""
    left_over = SparkSession.getActiveSession()
    if left_over is not None:
        left_over.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
        conf = {"spark.ui.enabled": "false", "spark.stage.maxConsecutiveAttempts": "1"}
        session = spark_session("tests", master="local[2,4]", conf=conf)
    yield session
    session.stop()


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
