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
@pytest.mark.parametrize(
    ("what", "counter", "spout", "times"),
    [
        # Whose rows are staged by tasks, and folded beside the transactions.
        ("large batches", "spread", "opaque", TIMES),
        ("large batches", "spread", "transactional", TIMES),
        ("a stateful bolt", "stateful", "opaque", STATEFUL_TIMES),
    ],
)
def test_kills_of_other_counters(
    what: str,
    counter: str,
    spout: str,
    times: int,
    kafka_broker: LocalBroker,
    tmp_path: Path,
    seed: int,
    kills: int | None,
    told: list[str],
) -> None:
    with (
        ArrivingWords(kafka_broker.bootstrap, seed) as words,
        closing(Soak(tmp_path, words, spout=spout, seed=seed, counter=counter)) as soak,
    ):
        soak.disturb(kills or times)
        soak.drain()
        told.append(f"soak of {what}, {spout} spout: {soak.check()}")
