"""Logs that were cut off while their broker was down, and have grown past the position since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spouts.kafka.spout import KafkaSpout
from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from tests.integration.kafka_topics import BOTH, planned, put, ranges
from transactional.errors import BatchLost

pytestmark = pytest.mark.kafka


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path) as broker:
        yield broker


def cut_log(broker: LocalBroker, topic: str) -> None:
    """Lose the second half of the log, as a power cut may, and all that would show it."""
    folder = next(path for path in broker.directory.rglob(f"{topic}-0") if path.is_dir())
    for file in folder.glob("*.log"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    traces = [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")]
    traces += [*broker.directory.rglob("*recovery*checkpoint*"), *broker.directory.rglob(".kafka_cleanshutdown")]
    for file in traces:
        file.unlink()


@BOTH
def test_a_log_that_was_cut_off_and_has_grown_past_the_position_ends_the_run(
    broker: LocalBroker, kind: type[KafkaSpout]
) -> None:
    for topic in ("cut", "whole"):
        create_topic(broker.bootstrap, topic, 1)
        put(broker.bootstrap, topic, [f"old {number}" for number in range(30)])
    with closing(kind(broker.bootstrap, ["cut"])) as cut, closing(kind(broker.bootstrap, ["whole"])) as whole:
        for spout in (cut, whole):
            spout.open()
        first, other = planned(cut), planned(whole)
        broker.stop()
        cut_log(broker, "cut")
        broker.start()
        for topic in ("cut", "whole"):
            put(broker.bootstrap, topic, [f"new {number}" for number in range(40)])
        with pytest.raises(BatchLost, match=r"its log was cut off before offset 30, which was read under leader epoch"):
            planned(cut, first)
        assert ranges(planned(whole, other)) == ["[30, 70)"], "it has had a new leader, and has lost nothing"
