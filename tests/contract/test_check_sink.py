"""Every sink of ours keeps what `check_sink` tries; and `check_sink` finds what is wrong with one that does not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sinks import DeltaSink, KafkaSink, Sink
from sinks.delta.append_log import AppendLog
from sinks.kafka import sink as kafka_sink
from tests.contract.wrong_sinks import WRONG, KeyedListSink, ListSink, break_publication, lose_kafka_answer, read
from tests.unit.runtime.publishing.publishing_world import World, simulated_clients
from transactional.errors import ConfigError
from transactional.testing import SINK_CASES, check_sink

NO_POSITION = {"a_target_that_is_gone_is_not_replaced", "an_earlier_leader_is_fenced"}
NO_WAY_BACK = {"going_back_fences", "going_back_repeats"}
NO_KEYS = {"late_records_have_the_same_keys"}
NOT_SENT = {"sending_without_a_transaction"}
ONE_PUBLISHER = {f"another_publisher_of_the_target({other})" for other in ("sink", "topology")}
FAILURES = {f"a_publication_that_fails({repeated})" for repeated in ("at once", "in the next process")}


def test_a_sink_with_a_position_passes_as_a_whole() -> None:
    assert set(check_sink(ListSink, read, break_publication=break_publication)) == NO_KEYS


def test_a_sink_with_keys_passes_as_a_whole() -> None:
    refused = check_sink(KeyedListSink, read, break_publication=break_publication)
    assert set(refused) == {*NO_POSITION, *NO_WAY_BACK, *NOT_SENT}


def test_failures_that_can_not_be_made_are_named() -> None:
    assert set(check_sink(ListSink, read)) == {*NO_KEYS, *FAILURES}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_what_is_wrong_is_found(wrong: Callable[[str], Sink]) -> None:
    case = WRONG[wrong]  # type: ignore[index]
    with pytest.raises(AssertionError, match=re.escape(f"case {case}: ")) as raised:
        check_sink(wrong, read, case, break_publication=break_publication)
    assert re.search(r"\nDone:\n  1\. .*\nExpected.*\nCame", str(raised.value), re.DOTALL)


def test_a_case_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"no case 'fences' of a sink: transactional\.testing\.SINK_CASES"):
        check_sink(ListSink, read, "fences")


# --- Delta ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", SINK_CASES)
def test_a_delta_sink_keeps_what_is_promised(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_table(target: str) -> Iterable[Sequence[object]]:
        rows = DeltaTable(str(tmp_path / target)).to_pyarrow_table().to_pylist()
        return [(row["word"], row["count"]) for row in rows]

    def lose_answer(sink: Sink) -> None:
        """Let the next Delta commit be written, and its answer be lost."""
        original = AppendLog.write

        def write(log: AppendLog, *arguments: Any) -> None:
            monkeypatch.setattr(AppendLog, "write", original)
            original(log, *arguments)
            raise OSError("no answer")

        monkeypatch.setattr(AppendLog, "write", write)

    refused = check_sink(
        lambda target: DeltaSink(tmp_path / target), read_table, case, break_publication=lose_answer, in_order=False
    )
    assert set(refused) <= {*NO_KEYS, *NOT_SENT, *ONE_PUBLISHER}


# --- Kafka ------------------------------------------------------------------------------------------------------------


def row_of(value: bytes | None) -> tuple[object, object]:
    """The fields of a JSON record."""
    fields = json.loads(value or b"{}")
    return fields.get("word"), fields.get("count")


@pytest.fixture
def world() -> Iterator[World]:
    """A Kafka in this process, in which nothing fails."""
    world = World(1)
    world.faults_end = True
    with simulated_clients(world) as patch:
        patch.setattr(kafka_sink, "cluster_id", lambda *_arguments: "cluster")
        yield world


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", sorted({*SINK_CASES} - NOT_SENT))
def test_a_kafka_sink_keeps_what_is_promised(world: World, case: str) -> None:
    def make(target: str) -> KafkaSink:
        world.kafka.topics.setdefault(target, [])
        return KafkaSink("broker:9092", target)

    refused = check_sink(
        make,
        lambda target: [row_of(entry.value) for entry in world.kafka.visible(target)],
        case,
        break_publication=lose_kafka_answer,
    )
    assert set(refused) <= {*NO_KEYS, *NO_WAY_BACK}
