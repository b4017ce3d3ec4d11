"""A topology over a real broker, killed and stopped two hundred times at chance moments: every count is right."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.proof.arriving import ArrivingWords
from tests.proof.onlooker import Onlooker
from tests.proof.scraper import Scraper
from tests.proof.soak import Soak
from tests.proof.soaking import TOPOLOGY

TIMES = 100
"""For each kind of spout."""
STATEFUL_TIMES = 50


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("spout", ["opaque", "transactional"])
def test_two_hundred_kills(
    spout: str, kafka_broker: LocalBroker, tmp_path: Path, seed: int, kills: int | None, told: list[str]
) -> None:
    with (
        ArrivingWords(kafka_broker.bootstrap, seed) as words,
        closing(Soak(tmp_path, words, spout=spout, seed=seed)) as soak,
        Onlooker(tmp_path, TOPOLOGY) as onlooker,
        Scraper(soak) as scraper,
    ):
        soak.disturb(kills or TIMES)
        soak.drain()
        seen = f"{onlooker.check()}; {scraper.check(soak.committed())}"
        told.append(f"soak, {spout} spout: {soak.check()}; {seen}")


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("spout", ["opaque", "transactional"])
def test_two_hundred_kills_of_large_batches(
    spout: str, kafka_broker: LocalBroker, tmp_path: Path, seed: int, kills: int | None, told: list[str]
) -> None:
    """Whose rows are staged by tasks, and folded beside the transactions."""
    with (
        ArrivingWords(kafka_broker.bootstrap, seed) as words,
        closing(Soak(tmp_path, words, spout=spout, seed=seed, counter="spread")) as soak,
    ):
        soak.disturb(kills or TIMES)
        soak.drain()
        told.append(f"soak of large batches, {spout} spout: {soak.check()}")


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.timeout(3_600)
def test_fifty_kills_of_a_stateful_bolt(
    kafka_broker: LocalBroker, tmp_path: Path, seed: int, kills: int | None, told: list[str]
) -> None:
    with (
        ArrivingWords(kafka_broker.bootstrap, seed) as words,
        closing(Soak(tmp_path, words, spout="opaque", seed=seed, counter="stateful")) as soak,
    ):
        soak.disturb(kills or STATEFUL_TIMES)
        soak.drain()
        told.append(f"soak of a stateful bolt: {soak.check()}")
