"""The Kafka example on a standalone cluster, with a driver that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.integration.cluster.spark_cluster import Cluster
from tests.integration.kafka_count import check_after_kills, command, run_and_kill
from tests.integration.programs import finished

BATCH = 40_000


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(400)
@pytest.mark.long("tests/integration/faults/test_kills.py")
def test_a_driver_that_is_killed_counts_every_flight_once(
    cluster: Cluster, kafka_broker: LocalBroker, tmp_path: Path
) -> None:
    """`make soak` kills one on this machine alone five times."""
    example = command(kafka_broker, tmp_path, master=cluster.master, batch=BATCH)
    run_and_kill(example, tmp_path, after_commits=2)
    finished(example, tmp_path, timeout_s=300)
    check_after_kills(tmp_path, BATCH)
