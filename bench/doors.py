"""`python -m bench.doors`: departures in JSON and in Avro, from Kafka to counts per carrier in Delta, beside the peers.

The records of both formats carry the id of a schema of a registry. Systems take turns, and each row is a program of its
own that begins cold, as in `bench.gears`. The peers cut the id off, and are given the schema: they have no client of a
registry.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from bench import machine
from bench.decoders import AVRO_JARS, FLAT, SCHEMAS, json_of, payloads_of, schema_of, values_of
from bench.gear_rows import FEW, MASTER, PEERS, TASKS, Course, OurRow, Row, cost, figures, now_s
from bench.peers import SETTINGS
from bench.rounds import Counting, Stage, check_counts
from bench.source import jar_settings
from bench.workload import Workload
from bench.works import Work, per_key
from spouts import AvroTranslator, JsonTranslator
from spouts.local_broker import LocalBroker
from spouts.local_registry import LocalRegistry, register
from transactional.runtime.spark.session import spark_session

SIZES, SYSTEMS = (20_000, 200_000), ("expert", "merge", "auto", "spark", "workers")
DRAWN = 100_000
"""So many records are drawn; then they come again in the same order."""
WANTED, FRAME_BYTES = "carrier string", 5
WRITTEN = {
    "json": ("JSON", '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'),
    "avro": ("AVRO", json.dumps(schema_of(FLAT))),
}
"""The formats: the kind of their schema, and the schema."""
READER = json.dumps(schema_of(FLAT) | {"fields": SCHEMAS[FLAT][:1]})


def topic_of(format_: str) -> Workload:
    """The topic of a format, without its records."""
    return Workload(f"doors-{format_}", (), 0, partitions=FEW)


def filled(format_: str, schema_id: int) -> Workload:
    """The same with its records, which are equal in both formats."""
    random, most = Random(1), max(Row("auto", size, FEW, 1).messages for size in SIZES)
    drawn = [values_of(FLAT, random) for _ in range(DRAWN)]
    payloads = payloads_of(FLAT, drawn) if format_ == "avro" else list(map(json_of, drawn))
    frame = b"\0" + schema_id.to_bytes(4, "big")
    values = [frame + each for each in payloads]
    words = tuple(itertools.islice(itertools.cycle([each["carrier"] for each in drawn]), most))
    topic = topic_of(format_)
    return Workload(topic.topic, words, 0, tuple(itertools.islice(itertools.cycle(values), most)), FEW)


def ours(format_: str, row: Row, bootstrap: str, registry: str, folder: Path) -> tuple[Counting, Course]:
    """A topology with the translator of the format."""
    system = OurRow(row, bootstrap, folder, topic=topic_of(format_), key="carrier")
    made = AvroTranslator(registry, WANTED) if format_ == "avro" else JsonTranslator(WANTED, registry=registry)
    system.options = {"translator": made}
    return system, system.course()


def theirs(format_: str, row: Row, bootstrap: str, registry: str, folder: Path) -> tuple[Counting, Course]:
    """A query of Structured Streaming."""
    del registry
    # A peer reads its topic to the end, so it has one with no more messages than it is to read.
    topic = filled(format_, 0).copy(bootstrap, uuid4().hex, row.messages)
    topic.append(bootstrap, 0, row.messages)
    begun_s = now_s()
    session = spark_session("doors", master=MASTER, parallelism=TASKS, conf={**SETTINGS, **jar_settings(AVRO_JARS)})
    work = Work("doors", "departures", topic, "value", select=by_avro if format_ == "avro" else by_json)
    system = PEERS[row.system](Stage(session, bootstrap, folder, TASKS), work, "row")
    batches = system.run(work.workload.until(row.messages), row.batch)
    planned_s = [(each.ended_at_ms - each.planned_ms) / 1e3 for each in batches]
    return system, Course(begun_s, planned_s, [each.ended_at_ms / 1e3 for each in batches], cost=cost())


def by_json(frame: DataFrame) -> DataFrame:
    """The carrier alone is read."""
    return frame.select(f.from_json(unframed().cast("string"), WANTED).getField("carrier").alias("key"))


def by_avro(frame: DataFrame) -> DataFrame:
    """The same, by a schema of the reader's."""
    read = from_avro(unframed(), json.dumps(schema_of(FLAT)), {"avroSchema": READER})
    return frame.select(read.getField("carrier").alias("key"))


def unframed() -> Any:
    """What stands behind the id."""
    return f.expr(f"substring(value, {FRAME_BYTES + 1})")


def measured(format_: str, row: Row, bootstrap: str, registry: str) -> dict[str, Any]:
    """The figures of a row. Raises `WrongResult` if the table does not hold exactly what was produced."""
    before, run = machine.cpu_time(), theirs if row.system in PEERS else ours
    with tempfile.TemporaryDirectory(prefix="doors-") as folder:
        system, course = run(format_, row, bootstrap, registry, Path(folder))
        workload = filled(format_, 0)
        check_counts(system, per_key(workload, "doors").expected(workload.until(row.messages)))
    after = machine.cpu_time()
    return {**figures(row, course), "others": after.others_share_since(before) if before and after else 0.0}


def every_row(rounds: int) -> Iterator[tuple[str, int, str]]:
    """Formats, sizes and systems: those that are compared run beside each other."""
    for _ in range(rounds):
        yield from itertools.product(WRITTEN, SIZES, SYSTEMS)


def main() -> None:
    """Measure, and show each row."""
    parser = argparse.ArgumentParser(prog="python -m bench.doors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--row", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        format_, size, system, bootstrap, registry = options.row
        row = Row(system, int(size), FEW, 3 if system not in PEERS else 1)
        sys.stdout.write(json.dumps(measured(format_, row, bootstrap, registry)))
        return
    with LocalBroker() as broker, LocalRegistry() as registry_:
        for format_, (kind, schema) in WRITTEN.items():
            topic = topic_of(format_).topic
            filled(format_, register(registry_.url, f"{topic}-value", schema, kind=kind)).produce(broker.bootstrap)
        for format_, size, system in every_row(options.rounds):
            print(shown(format_, size, system, apart([format_, str(size), system, broker.bootstrap, registry_.url])))


def apart(row: Sequence[str]) -> dict[str, float]:
    """A row in a process of its own. Raises `CalledProcessError`."""
    command = [sys.executable, "-m", "bench.doors", "--row", *row]
    found: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def shown(format_: str, size: int, system: str, found: dict[str, float]) -> str:
    """A line."""
    return (
        f"{format_:5} {size:8,} {system:8} {found['speed']:12,.0f} messages/s, first commit {found['first_s']:5.1f} s, "
        f"p50 {found['p50_ms']:6,.0f} ms, p99 {found['p99_ms']:6,.0f} ms; others {found['others']:.0%}"
    )


if __name__ == "__main__":
    from bench.doors import main as in_its_module  # executors look classes up where they are

    in_its_module()
