"""Processes without Spark are killed, at chance moments and at chosen ones; at the end every row is counted once."""

from __future__ import annotations

import signal
import sys
from contextlib import closing
from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.integration.faults import dying
from tests.integration.kafka_count import end_lease
from tests.integration.programs import Program
from tests.integration.tables import counts
from tests.proof.arriving import ArrivingWords
from tests.proof.onlooker import Onlooker
from tests.proof.scraper import Scraper
from tests.proof.soak import Soak
from tests.proof.soaking import TOPOLOGY

SEED = 4
SHORT_SOAK = 4
"""Each way once; `make soak` has 200."""


@pytest.mark.kafka
def test_leaders_that_are_killed_and_stopped_while_data_keeps_arriving(
    kafka_broker: LocalBroker, tmp_path: Path
) -> None:
    """Partitions are added meanwhile, and Kafka transactions aborted; who was stopped for too long is shut out."""
    with (
        ArrivingWords(kafka_broker.bootstrap, SEED) as words,
        closing(Soak(tmp_path, words, spout="opaque", seed=SEED)) as soak,
        Onlooker(tmp_path, TOPOLOGY) as onlooker,
        Scraper(soak) as scraper,
    ):
        soak.disturb(SHORT_SOAK)
        soak.drain()
        sys.stdout.write(f"{soak.check()}; {onlooker.check()}; {scraper.check()}\n")
        assert words.aborted
        assert soak.done["SIGKILL"]
        assert soak.done["SIGSTOP"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("point", dying.POINTS)
def test_a_crash_at_any_point_of_a_commit_phase_changes_no_count(point: str, tmp_path: Path) -> None:
    with Program([sys.executable, "-m", "tests.integration.faults.dying", point], tmp_path) as program:
        assert program.wait() == -signal.SIGKILL, program.text
    end_lease(tmp_path, "dying")
    dying.run(tmp_path)
    for table in ("first", "second"):
        assert counts(tmp_path / table, "word") == dying.EXPECTED, table
