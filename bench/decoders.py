"""`python -m bench.decoders`: how many records a second and core each decoder turns into Arrow columns.

The decoders take turns, round by round, over the same records, so that what else the machine does meets all of them.
fastavro is what a user's own function would call.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

import fastavro
import pyarrow as pa

from bench import machine
from spouts import AvroTranslator, JsonTranslator
from spouts.kafka.records import record_schema
from spouts.kafka.translators import Translator
from transactional.arrow import arrow_schema
from transactional.schema import Schema

PIECE, ROUNDS = 10_000, 15
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
Decode = Callable[[pa.RecordBatch], object]


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


def decoders(fields: str) -> dict[str, tuple[Decode, pa.RecordBatch]]:
    """Each decoder with a piece of the same records, in its format."""
    schema = {"type": "record", "name": "Flight", "fields": SCHEMAS[fields]}
    random, ready = Random(1), fastavro.parse_schema(schema)
    values = [values_of(fields, random) for _ in range(PIECE)]
    payloads = list[bytes]()
    for each in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, ready, each)
        payloads.append(buffer.getvalue())
    avro = AvroTranslator(fields=fields, framing="none", writer=json.dumps(schema))
    as_json = JsonTranslator(fields.replace("at timestamp", "at long"))
    of_avro, of_json = records(payloads, avro), records([json.dumps(each).encode() for each in values], as_json)
    wanted = arrow_schema(Schema.parse(fields))

    def by_fastavro(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [fastavro.schemaless_reader(io.BytesIO(each), ready, None) for each in batch.column("value").to_pylist()]
        return pa.RecordBatch.from_pylist(rows, schema=wanted)

    return {
        "AvroTranslator": (avro.translate, of_avro),
        "JsonTranslator": (as_json.translate, of_json),
        "a function over fastavro": (by_fastavro, of_avro),
    }


def measured(fields: str, rounds: int) -> dict[str, list[float]]:
    """Records a second of each, round by round."""
    given, speeds = decoders(fields), dict[str, list[float]]()
    for _ in range(rounds):
        for name, (decode, batch) in given.items():
            before = time.perf_counter()
            decode(batch)
            speeds.setdefault(name, []).append(PIECE / (time.perf_counter() - before))
    return speeds


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoders", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    before = machine.cpu_time()
    for title, fields in (("flat", FLAT), ("nested", NESTED)):
        for name, speeds in measured(fields, options.rounds).items():
            fastest, slowest = max(speeds), min(speeds)
            print(f"{title:7} {name:26} {median(speeds):12,.0f} records/s ({slowest:,.0f} to {fastest:,.0f})")
    after = machine.cpu_time()
    print(f"share of others: {after.others_share_since(before):.0%}" if before and after else "")


if __name__ == "__main__":
    main()
