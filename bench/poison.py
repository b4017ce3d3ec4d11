"""`python -m bench.poison`: what bad records cost, among good ones that a topology on Spark reads from Kafka.

Four works in turns: none is bad; some are, and a bolt fails on them (tuple by tuple, or Arrow-wise), so that an attempt
fails and names them; some are, and the translator sets them aside, so that none does.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.peers import SETTINGS
from spouts import JsonTranslator, OpaqueKafkaSpout
from spouts.kafka_admin import create_topic
from spouts.local_broker import LocalBroker
from state import DeadLetterTable, DeltaMapState
from transactional import RunSummary, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.spark_session import spark_session

TASKS = 2
OUTPUT = "word string"


def by_tuple(row: Tuple) -> tuple[str]:
    """The word of a record."""
    return (json.loads(row["value"])["word"],)


def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The words of many records."""
    values = batch.column("value").to_pylist()
    return pa.RecordBatch.from_arrays([pa.array([json.loads(v)["word"] for v in values], pa.string())], ["word"])


def run(session: SparkSession, bootstrap: str, topic: str, bolt: Callable[..., Any] | None, batch: int) -> RunSummary:
    """Read the topic to its end; the words are counted in one table."""
    translator = JsonTranslator(OUTPUT, on_error="dead_letter") if bolt is None else None
    fields: dict[str, Any] = {} if translator else {"fields": ["value"]}
    spout = OpaqueKafkaSpout(bootstrap, topic, translator=translator, batch_records_max=batch, **fields)
    builder, source = TransactionalTopologyBuilder("poison", "records", spout, TASKS), "records"
    if bolt is not None:
        builder.set_bolt("parse", bolt, TASKS, output=OUTPUT).shuffle_grouping("records")
        source = "parse"
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        counts = DeltaMapState(f"{folder}/counts", "word").count()
        builder.set_committer_bolt("counts", counts).fields_grouping(source, "word")
        builder.set_dead_letters(DeadLetterTable(f"{folder}/letters"))
        config = {"attempts_max": 1, "stop_when_drained": True}
        summary = run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, session=session)
        set_aside = DeadLetterTable(f"{folder}/letters").read().num_rows
        counted = pc.sum(DeltaMapState(f"{folder}/counts", "word").read().column("count")).as_py()
    print(f"  {topic} {getattr(bolt, '__name__', 'translator')}: {counted} counted, {set_aside} set aside, {summary}")
    return summary


def produce(bootstrap: str, topic: str, good: int, bad: int) -> None:
    """JSON records, the bad ones spread evenly among them."""
    create_topic(bootstrap, topic, TASKS)
    producer = Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000})
    every = (good + bad) // bad if bad else good + bad + 1
    for number in range(good + bad):
        value = b"no JSON: %d" % number if number % every == every - 1 else b'{"word": "word %d"}' % (number % 1_000)
        producer.produce(topic, value, partition=number % TASKS)
    producer.flush()


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.poison", description=__doc__)
    parser.add_argument("--good", type=int, default=20_000)
    parser.add_argument("--bad", type=int, default=100)
    parser.add_argument("--batch", type=int, default=20_100, help="records in a transaction, at most")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    works: dict[str, tuple[str, Callable[..., Any] | None]] = {
        "tuples, none bad": ("clean", by_tuple),
        "tuples, some bad": ("dirty", by_tuple),
        "Arrow, none bad": ("clean", by_batch),
        "Arrow, some bad": ("dirty", by_batch),
        "translator, none bad": ("clean", None),
        "translator, some bad": ("dirty", None),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, LocalBroker(Path(folder)) as broker:
        produce(broker.bootstrap, "clean", asked.good + asked.bad, 0)
        produce(broker.bootstrap, "dirty", asked.good, asked.bad)
        session = spark_session("poison", master=f"local[{TASKS}]", parallelism=TASKS, conf=SETTINGS)
        for number in range(asked.rounds + 1):
            for name, (topic, bolt) in works.items():
                began = perf_counter()
                run(session, broker.bootstrap, topic, bolt, asked.batch)
                if number:
                    seconds[name].append(perf_counter() - began)
        session.stop()
    for kind in ("tuples", "Arrow", "translator"):
        clean, dirty = median(seconds[f"{kind}, none bad"]), median(seconds[f"{kind}, some bad"])
        print(f"{kind}: {clean:.2f} s with none, {dirty:.2f} s with {asked.bad} bad, {dirty / clean:.2f} times as long")


if __name__ == "__main__":
    main()
