"""The programs of `python -m bench appends`, each in a process of its own: those that append, and one that sends rows.

A row has 1,000 bytes in JSON, and somewhat fewer in Avro. It has a number, and the time at which it was sent, in
microseconds of the machine's clock. So a reader of the table knows how long the row took, and that each number came
once.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from string import ascii_letters
from typing import Any

import fastavro
from confluent_kafka import Producer
from pyspark.sql import DataFrame
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import col, from_json

from bench.decoders import AVRO_JARS
from bench.peers import SETTINGS
from bench.sink_programs import PARTITIONS, TASKS, now_us
from bench.source import jar_settings, read_topic
from sinks import DeltaSink
from spouts import AvroTranslator, JsonTranslator, TransactionalKafkaSpout
from spouts.kafka.translators import Translator
from transactional import TransactionalTopologyBuilder, run_topology
from transactional.runtime.spark.session import spark_session

JSON, AVRO = "json", "avro"
ROW_BYTES, ENDS = 1_000, 1_000
FIELDS = "number long, sent_us long, country string, customer string, amount double, payload string"
_TYPES = {"number": "long", "sent_us": "long", "amount": "double"}
_TICK_S = 0.01
_NUMBER_DIGITS, _TIME_DIGITS = 9, 15
"""The digits of numbers and times in JSON, filled with spaces, so that all rows have one size."""


def schema_of(fields: Sequence[str]) -> dict[str, Any]:
    """Return the Avro schema of some fields of a row."""
    types = [{"name": name, "type": _TYPES.get(name, "string")} for name in fields]
    return {"type": "record", "name": "Order", "fields": types}


WRITER = json.dumps(schema_of(["number", "sent_us", "country", "customer", "amount", "payload"]))


class RowMaker:
    """Makes rows in JSON or Avro, which differ and hardly compress. In JSON all have one size, in Avro nearly.

    Country, customer and amount of `ENDS` rows are prepared, and payloads are cut out of a long text.
    """

    def __init__(self, form: str) -> None:
        random = Random(1)
        self._letters = "".join(random.choices(ascii_letters, k=2**20)).encode()
        self._front = _avro_front if form == AVRO else _json_front
        rows = [
            {"country": random.choice(["de", "fr", "us"]), "customer": f"c{n:05}", "amount": n / 4 + 1_000.125}
            for n in range(ENDS)
        ]
        texts = [json.dumps(row).encode()[1:-1] + b',"payload":"' for row in rows]
        self._payload_bytes = ROW_BYTES - len(_json_front(1)) - max(map(len, texts)) - 2
        self._middles = [_avro(row) + _zigzag(self._payload_bytes) for row in rows] if form == AVRO else texts
        self._end = b"" if form == AVRO else b'"}'

    def make(self, number: int) -> bytes:
        """Make the row with this number, sent now."""
        start = number * 7_919 % (len(self._letters) - self._payload_bytes)
        payload = self._letters[start : start + self._payload_bytes]
        return self._front(number) + self._middles[number % ENDS] + payload + self._end


def _avro(row: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema_of(tuple(row))), row)
    return buffer.getvalue()


def _json_front(number: int) -> bytes:
    return b'{"number":%*d,"sent_us":%*d,' % (_NUMBER_DIGITS, number, _TIME_DIGITS, now_us())


def _avro_front(number: int) -> bytes:
    return _zigzag(number) + _zigzag(now_us())


def _zigzag(number: int) -> bytes:
    """Encode a number that is not negative as Avro does."""
    encoded, digits = bytearray(), number << 1
    while digits > 0x7F:
        encoded.append(digits & 0x7F | 0x80)
        digits >>= 7
    encoded.append(digits)
    return bytes(encoded)


def send(bootstrap: str, topic: str, form: str, numbers: range, rate: int) -> None:
    """Send rows with these numbers, so many a second, or as quickly as it goes if `rate` is 0."""
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 2**20}
    producer = Producer({**settings, "queue.buffering.max.kbytes": 2**18})
    rows = RowMaker(form)
    began_s, next_number = time.monotonic(), numbers.start
    while next_number < numbers.stop:
        due = min(numbers.stop, numbers.start + int((time.monotonic() - began_s) * rate) + 1) if rate else numbers.stop
        for number in range(next_number, due):
            while True:
                try:
                    producer.produce(topic, rows.make(number), partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
        next_number = due
        producer.poll(_TICK_S if rate else 0)
    producer.flush()


def translator_of(form: str) -> Translator:
    """Return the decoder of our source."""
    return AvroTranslator(fields=FIELDS, framing="none", writer=WRITER) if form == AVRO else JsonTranslator(FIELDS)


def ours(bootstrap: str, topic: str, form: str, folder: str, batch: int, in_flight: int) -> None:
    """Append the rows by a spout and a sink."""
    spout = TransactionalKafkaSpout(bootstrap, [topic], translator=translator_of(form), batch_records_max=batch)
    builder = TransactionalTopologyBuilder(f"from-{topic}", "rows", spout, parallelism=TASKS)
    sink = DeltaSink(f"{folder}/table")
    builder.set_sink("table", sink, parallelism=TASKS).local_or_shuffle_grouping("rows")
    config = {"max_spout_pending": in_flight, "processing": "auto"}
    run_topology(builder.build(), store=f"sqlite:///{folder}/store.db", config=config, master=f"local[{TASKS}]")


def spark(bootstrap: str, topic: str, form: str, folder: str, batch: int, in_flight: int) -> None:
    """Append the rows by Structured Streaming, which has one micro-batch in flight."""
    del in_flight
    settings = {**SETTINGS, **jar_settings(AVRO_JARS)}
    session = spark_session("appends", master=f"local[{TASKS}]", parallelism=TASKS, conf=settings)
    rows = _decoded(read_topic(session, bootstrap, topic, batch, ("value",)), form)
    writer = rows.writeStream.format("delta").outputMode("append")
    writer.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/table").awaitTermination()


def _decoded(records: DataFrame, form: str) -> DataFrame:
    text = col("value").cast("string")
    row = from_avro("value", WRITER) if form == AVRO else from_json(text, FIELDS.replace(" long", " bigint"))
    return records.select(row.alias("row")).select("row.*")


PROGRAMS: Mapping[str, Callable[[str, str, str, str, int, int], None]] = {"ours": ours, "spark": spark}


def main(arguments: Sequence[str]) -> None:
    """`python -m bench.append_programs SYSTEM BOOTSTRAP TOPIC FORM FOLDER BATCH IN_FLIGHT`, or `send BOOTSTRAP TOPIC
    FORM START END RATE`."""
    match arguments:
        case ["send", bootstrap, topic, form, start, end, rate]:
            send(bootstrap, topic, form, range(int(start), int(end)), int(rate))
        case [system, bootstrap, topic, form, folder, batch, in_flight]:
            PROGRAMS[system](bootstrap, topic, form, folder, int(batch), int(in_flight))


if __name__ == "__main__":
    main(sys.argv[1:])
