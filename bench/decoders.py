"""`python -m bench.decoders`: how many records a second and core each decoder turns into Arrow columns.

The decoders take turns, round by round, over the same records, so that what else the machine does meets all of them.
fastavro is what a user's own function would call.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql.avro.functions import from_avro

from bench import machine
from spouts import AvroTranslator, JsonTranslator
from spouts.kafka.records import record_schema
from spouts.kafka.translators import Translator
from spouts.local_registry import LocalRegistry, register
from transactional.model.arrow import arrow_schema
from transactional.model.schema import Schema
from transactional.runtime.spark.jars import JarSet
from transactional.runtime.spark.session import DELTA_JARS, spark_session

PIECE, ROUNDS = 10_000, 15
SPARK_TIMES = 50
AVRO_JARS = JarSet("spark-avro-4.2.0", Path(__file__).with_name("avro.lock"))
FLAT = "carrier string, origin string, dest string, flight int, distance long, delay double, at timestamp, ok boolean"
NESTED = "id long, plane struct<tail:string,seats:int>, stops array<string>, legs array<struct<to:string,miles:int>>"
_AT = {"type": "long", "logicalType": "timestamp-millis"}
_STRINGS = [{"name": name, "type": "string"} for name in ("carrier", "origin", "dest")]
_LEG = {"type": "record", "name": "Leg", "fields": [{"name": "to", "type": "string"}, {"name": "miles", "type": "int"}]}
_PLANE_FIELDS = [{"name": "tail", "type": "string"}, {"name": "seats", "type": ["null", "int"]}]
SCHEMAS: Mapping[str, list[dict[str, Any]]] = {
    FLAT: [
        *_STRINGS,
        {"name": "flight", "type": "int"},
        {"name": "distance", "type": "long"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "at", "type": _AT},
        {"name": "ok", "type": "boolean"},
    ],
    NESTED: [
        {"name": "id", "type": "long"},
        {"name": "plane", "type": {"type": "record", "name": "Plane", "fields": _PLANE_FIELDS}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "legs", "type": {"type": "array", "items": _LEG}},
    ],
}
Timed = Callable[[], float]
"""Decodes once, and returns how many records a second."""


def values_of(fields: str, random: Random) -> dict[str, Any]:
    """The values of one record."""
    if fields == NESTED:
        legs = [{"to": "LAX", "miles": random.randrange(3_000)} for _ in range(random.randrange(4))]
        plane = {"tail": f"N{random.randrange(1_000)}", "seats": random.choice([None, 180])}
        return {"id": random.randrange(10**6), "plane": plane, "stops": ["JFK"] * random.randrange(3), "legs": legs}
    names = {"carrier": random.choice(["AA", "BA", "UA"]), "origin": "JFK", "dest": f"LAX{random.randrange(1_000)}"}
    numbers = {"flight": random.randrange(10_000), "distance": random.randrange(10**6), "at": random.randrange(10**12)}
    return {**names, **numbers, "delay": random.choice([None, random.random()]), "ok": random.random() < 0.5}


def records(payloads: Sequence[bytes], translator: Translator) -> pa.RecordBatch:
    """A piece of records of one topic."""
    rows = [{"topic": "t", "partition": 0, "offset": n, "value": value} for n, value in enumerate(payloads)]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(record_schema(translator.fields)))


def schema_of(fields: str) -> dict[str, Any]:
    """Their Avro schema."""
    return {"type": "record", "name": "Flight", "fields": SCHEMAS[fields]}


def payloads_of(fields: str, values: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Values in Avro."""
    ready, payloads = fastavro.parse_schema(schema_of(fields)), list[bytes]()
    for each in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, ready, each)
        payloads.append(buffer.getvalue())
    return payloads


def json_of(values: Mapping[str, Any]) -> bytes:
    """Values in JSON."""
    return json.dumps(values).encode()


def decoders(fields: str, registry: str) -> dict[str, Timed]:
    """Each decoder with the same records, in its format."""
    random = Random(1)
    values = [values_of(fields, random) for _ in range(PIECE)]
    payloads, schema = payloads_of(fields, values), json.dumps(schema_of(fields))
    avro = AvroTranslator(fields=fields, framing="none", writer=schema)
    as_json = JsonTranslator(fields.replace("at timestamp", "at long"))
    of_avro, of_json = records(payloads, avro), records(list(map(json_of, values)), as_json)
    return {
        "AvroTranslator": timed(lambda: avro.translate(of_avro)),
        "JsonTranslator": timed(lambda: as_json.translate(of_json)),
        "a function over fastavro": timed(lambda: by_fastavro(fields, payloads)),
        **by_confluent(fields, payloads, registry),
        "Spark's from_avro": by_spark(fields, payloads),
    }


def timed(decode: Callable[[], object]) -> Timed:
    """How many records a second and core it decodes: those of one piece."""

    def run() -> float:
        before = time.perf_counter()
        decode()
        return PIECE / (time.perf_counter() - before)

    return run


def by_fastavro(fields: str, payloads: Sequence[bytes]) -> pa.RecordBatch:
    """As a user's own function does it."""
    ready = fastavro.parse_schema(schema_of(fields))
    rows = [fastavro.schemaless_reader(io.BytesIO(each), ready, None) for each in payloads]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(Schema.parse(fields)))


def by_confluent(fields: str, payloads: Sequence[bytes], registry: str) -> dict[str, Timed]:
    """By confluent-kafka's deserializer, if the packages of its extra `avro` are installed: they are not of ours."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroDeserializer
    except ImportError:
        return {}
    schema = json.dumps(schema_of(fields))
    frame = b"\0" + register(registry, f"flights-{len(SCHEMAS[fields])}-value", schema).to_bytes(4, "big")
    framed, deserialize = [frame + each for each in payloads], AvroDeserializer(SchemaRegistryClient({"url": registry}))
    context, wanted = SerializationContext("flights", MessageField.VALUE), arrow_schema(Schema.parse(fields))
    return {
        "confluent-kafka's AvroDeserializer": timed(
            lambda: pa.RecordBatch.from_pylist([deserialize(each, context) for each in framed], schema=wanted)
        )
    }


def by_spark(fields: str, payloads: Sequence[bytes]) -> Timed:
    """By from_avro, on one core, into nothing; the records are in Spark's memory, and many, as a job takes its time."""
    jars = {"spark.jars": ",".join(map(str, [*DELTA_JARS.files(), *AVRO_JARS.files()]))}
    session = spark_session("decoders", master="local[1]", conf=jars)
    many = session.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary())}))
    many = many.crossJoin(session.range(SPARK_TIMES)).coalesce(1).select("value").cache()
    number, schema = many.count(), json.dumps(schema_of(fields))

    def run() -> float:
        before = time.perf_counter()
        many.select(from_avro("value", schema).alias("read")).write.format("noop").mode("overwrite").save()
        return number / (time.perf_counter() - before)

    return run


def measured(fields: str, rounds: int, registry: str) -> dict[str, list[float]]:
    """Records a second of each, round by round."""
    given, speeds = decoders(fields, registry), dict[str, list[float]]()
    for _ in range(rounds):
        for name, run in given.items():
            speeds.setdefault(name, []).append(run())
    return speeds


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoders", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    before = machine.cpu_time()
    with LocalRegistry() as registry:
        for title, fields in (("flat", FLAT), ("nested", NESTED)):
            for name, speeds in measured(fields, options.rounds, registry.url).items():
                fastest, slowest = max(speeds), min(speeds)
                print(f"{title:7} {name:34} {median(speeds):12,.0f} records/s ({slowest:,.0f} to {fastest:,.0f})")
    after = machine.cpu_time()
    print(f"share of others: {after.others_share_since(before):.0%}" if before and after else "")


if __name__ == "__main__":
    main()
