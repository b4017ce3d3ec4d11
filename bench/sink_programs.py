"""The programs of `python -m bench sinks`, each in a process of its own: what passes records on, and what sends them.

A record's value begins with when it was sent, in microseconds of the machine's clock, and its number, both in sixteen
digits. So whoever reads it knows how long it took, and that each number came once. Probes, sent until the first record
comes through, have the number 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from confluent_kafka import Producer

from bench.source import jar_settings, read_topic
from sinks import KafkaSink
from spouts import TransactionalKafkaSpout
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.runtime.spark.jars import JarSet, find_java
from transactional.runtime.spark.session import spark_session

TASKS, PARTITIONS = 2, 4
DIGITS, RECORD_BYTES = 16, 100
COMMIT_MS = 10
"""How often Kafka Streams commits. By default it does after 100 ms, and its records are visible as much later."""
STREAMS_JARS = JarSet("kafka-streams-4.2.0", Path(__file__).with_name("kafka_streams.lock"))
_SOURCE = Path(__file__).with_name("PassThrough.java")
_TICK_S = 0.01


def now_us() -> int:
    """Microseconds since the machine was started, which its processes share."""
    return time.monotonic_ns() // 1_000


def record_of(number: int) -> bytes:
    """The value of a record that is sent now."""
    return f"{now_us():0{DIGITS}}{number:0{DIGITS}}".encode().ljust(RECORD_BYTES, b".")


def sent_us(record: bytes) -> int:
    """When a record was sent."""
    return int(record[:DIGITS])


def number_of(record: bytes) -> int:
    """The number of a record."""
    return int(record[DIGITS : 2 * DIGITS])


def send(bootstrap: str, topic: str, start: int, end: int, rate: int) -> None:
    """Send the records from `start` to before `end`, so many a second, or as quickly as it goes if `rate` is 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "queue.buffering.max.messages": 100_000})
    began_s, next_number = time.monotonic(), start
    while next_number < end:
        due = end if not rate else min(end, start + int((time.monotonic() - began_s) * rate) + 1)
        for number in range(next_number, due):
            _send_one(producer, topic, number)
        next_number = due
        producer.poll(_TICK_S if rate else 0)
    producer.flush()


def _send_one(producer: Producer, topic: str, number: int) -> None:
    while True:
        try:
            producer.produce(topic, record_of(number), partition=number % PARTITIONS)
            return
        except BufferError:
            producer.poll(0.1)


def topology_id(target: str) -> str:
    """Return the id of the topology that passes records on to a topic."""
    return f"to-{target}"


def store_url(folder: str) -> str:
    """Return the URL of the store of the topology that has this folder."""
    return f"sqlite:///{folder}/store.db"


def ours(bootstrap: str, source: str, target: str, folder: str, batch: int, in_flight: int) -> None:
    """Pass the records on exactly once, by a spout and a sink."""
    spout = TransactionalKafkaSpout(bootstrap, [source], fields=("value",), batch_records_max=batch)
    builder = TransactionalTopologyBuilder(topology_id(target), "records", spout, parallelism=TASKS)
    builder.set_sink("out", KafkaSink(bootstrap, target, value="value"), parallelism=TASKS).shuffle_grouping("records")
    config = {"max_spout_pending": in_flight, "processing": "auto"}
    run_topology(builder.build(), store=store_url(folder), config=config, master=f"local[{TASKS}]")


def spark(bootstrap: str, source: str, target: str, folder: str, batch: int, _in_flight: int) -> None:
    """Pass the records on at least once, by Structured Streaming."""
    session = spark_session("sinks", master=f"local[{TASKS}]", parallelism=TASKS, conf=jar_settings())
    records = read_topic(session, bootstrap, source, batch, ("value",))
    writer = records.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


def streams_command(bootstrap: str, source: str, target: str, folder: str) -> list[str]:
    """The command of Kafka Streams, exactly once, which Java compiles and runs."""
    class_path = ":".join(map(str, STREAMS_JARS.files()))
    arguments = [str(_SOURCE), bootstrap, source, target, folder, str(COMMIT_MS)]
    return [find_java().path, "-Xmx1g", "-cp", class_path, *arguments]


PROGRAMS: Mapping[str, Callable[[str, str, str, str, int, int], None]] = {"ours": ours, "spark": spark}


def main(arguments: list[str]) -> None:
    """`python -m bench.sink_programs SYSTEM BOOTSTRAP SOURCE TARGET FOLDER BATCH IN_FLIGHT`, or `send BOOTSTRAP TOPIC
    START END RATE`."""
    match arguments:
        case ["send", bootstrap, topic, *numbers]:
            start, end, rate = map(int, numbers)
            send(bootstrap, topic, start, end, rate)
        case [system, bootstrap, source, target, folder, batch, in_flight]:
            PROGRAMS[system](bootstrap, source, target, folder, int(batch), int(in_flight))


if __name__ == "__main__":
    main(sys.argv[1:])
