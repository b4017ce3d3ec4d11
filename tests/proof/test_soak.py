"""A topology over a real broker, killed and stopped hundreds of times at chance moments: every count is right. One on
Spark, killed again and again."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from spouts.local_broker import LocalBroker
from tests.integration.kafka_count import check_after_kills, command, run_and_kill
from tests.integration.programs import finished
from tests.proof.arriving import ArrivingWords
from tests.proof.onlooker import Onlooker
from tests.proof.scraper import Scraper
from tests.proof.soak import Soak
from tests.proof.soaking import TOPOLOGY
from tests.proof.watcher import Watcher

TIMES = {"committer": 100, "spread": 100, "stateful": 50}
"""By what counts, for each kind of spout; `spread` counts large batches, whose rows tasks stage, and are compacted
beside
the transactions."""
WORKER_TIMES = 100
"""In workers, which are killed and stopped as well as their drivers."""
PART = 25
"""So many has a part, which is what is run again if it is interrupted."""
SPARK_TIMES = 5
SPARK_BATCH = 8_000


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("counter", "spout", "first"),
    [
        (counter, spout, first)
        for counter, times in TIMES.items()
        for spout in (("opaque",) if counter == "stateful" else ("opaque", "transactional"))
        for first in range(0, times, PART)
    ],
)
def test_kills(
    counter: str,
    spout: str,
    first: int,
    kafka_broker: LocalBroker,
    tmp_path: Path,
    seed: int,
    kills: int | None,
    told: list[str],
    counts: Counter[str],
) -> None:
    with (
        ArrivingWords(kafka_broker.bootstrap, seed + first) as words,
        closing(Soak(tmp_path, words, spout=spout, seed=seed + first, counter=counter)) as soak,
        ExitStack() as stack,
    ):
        watchers: list[Watcher] = [Onlooker(tmp_path, TOPOLOGY), Scraper(soak)] if counter == "committer" else []
        for watcher in watchers:
            stack.enter_context(watcher)
        soak.disturb(kills or PART)
        soak.drain()
        seen = [watcher.check() for watcher in watchers]
        told.append("; ".join([f"soak of a {counter}, {spout} spout: {soak.check()}", *seen]))
        counts.update(soak.counted())


@pytest.mark.proof
@pytest.mark.kafka
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, WORKER_TIMES, PART))
def test_kills_of_drivers_and_workers(
    first: int,
    kafka_broker: LocalBroker,
    tmp_path: Path,
    seed: int,
    kills: int | None,
    told: list[str],
    counts: Counter[str],
) -> None:
    with (
        ArrivingWords(kafka_broker.bootstrap, seed + first) as words,
        closing(Soak(tmp_path, words, spout="opaque", seed=seed + first, workers=True)) as soak,
    ):
        soak.disturb(kills or PART)
        soak.drain()
        told.append(f"soak in workers: {soak.check()}")
        counts.update(soak.counted())


@pytest.mark.proof
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_a_driver_on_spark_that_is_killed_again_and_again(
    kafka_broker: LocalBroker, tmp_path: Path, seed: int, told: list[str], counts: Counter[str]
) -> None:
    moments = random.Random(seed)
    example = command(kafka_broker, tmp_path, master="local[2]", batch=SPARK_BATCH)
    for _ in range(SPARK_TIMES):
        run_and_kill(example, tmp_path, moments.randint(1, 4), moments.random())
    finished(example, tmp_path, timeout_s=300)
    check_after_kills(tmp_path, SPARK_BATCH)
    told.append(f"soak on Spark: {SPARK_TIMES} processes ended by force")
    counts["kills and stops"] += SPARK_TIMES
