"""Damaged records, and pairs of schemas: what ours and fastavro make of them."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from tests.unit.spouts.avro.drawing import Drawn, by_fastavro, decoded, read_of, written

STRICTER = re.compile(
    r"no such symbol|no such branch|does not fit in precision|more digits than|is no int|a number has no end"
    r"|take no bytes"
)
"""Where ours finds a damage that fastavro reads: numbers below 0 count from a list's end there, decimals with too many
digits are rounded, an int may have any size."""
PER_SCHEMA = 80
"""More than `nested.LANES_MIN`, so that some arrays are read side by side and others one after the other."""


def damaged(random: Random, payload: bytes) -> bytes:
    """With a flipped bit; or cut short, or with bytes behind; or as it is."""
    data = bytearray(payload)
    if data and random.random() < 0.7:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    if random.random() < 0.4:
        data = data[: random.randint(0, len(data))]
    return bytes(data + random.randbytes(random.choice([0, 0, 0, 1, 9])))


def compared(first: int, count: int) -> tuple[int, int]:
    """Compare about so many damaged records, of schemas from this seed on. Returns how many, and how many are bad."""
    done = bad = 0
    seed = first
    while done < count:
        drawn = Drawn(Random(seed))
        schema = drawn.schema()
        good = written(schema, [drawn.value(schema) for _ in range(PER_SCHEMA)])
        payloads, reader = [damaged(drawn.random, each) for each in good], read_of(schema)
        for payload, ours in zip(payloads, decoded(schema, payloads, reader), strict=True):
            theirs = read_by_fastavro(payload, schema, reader)
            if isinstance(ours, Exception) and not isinstance(theirs, Exception):
                theirs = read_by_fastavro(payload, schema)  # what it passes by, it does not look at
            check(ours, theirs, f"seed {seed}: {payload!r} of {schema}")
            bad += isinstance(ours, Exception)
        done, seed = done + PER_SCHEMA, seed + 1
    return done, bad


def read_by_fastavro(payload: bytes, writer: Any, reader: Any = None) -> Any:
    """The value, or the error."""
    try:
        return by_fastavro(payload, writer, reader)
    except Exception as error:
        return error


def check(ours: Any, theirs: Any, what: str) -> None:
    """Both are the same value, or both are errors; or ours is for a reason that fastavro has no eye for."""
    if isinstance(ours, Exception):
        assert isinstance(theirs, Exception) or STRICTER.search(str(ours)), f"{what}: {ours!r}, not {theirs!r}"
    else:
        assert same(ours) == same(theirs), what


def same(value: Any) -> str:
    """As text, with fields by their names: NaN is equal to itself, and UTC is UTC."""
    if isinstance(value, dict):
        return str({name: same(value[name]) for name in sorted(value)})
    if isinstance(value, list):
        return str(list(map(same, value)))
    return repr(value).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")


# --- pairs of schemas -----------------------------------------------------------------------------------------------


def evolved(drawn: Drawn, schema: Any) -> Any:
    """A schema of a reader, which can read what the other one has written, or most of it."""
    if isinstance(schema, list):
        return [evolved(drawn, each) for each in schema]
    if isinstance(schema, dict) and schema["type"] == "record":
        return _record(drawn, schema)
    if isinstance(schema, dict) and schema["type"] == "enum":
        kept = [each for each in schema["symbols"] if drawn.random.random() < 0.8] or ["Z"]
        return {**schema, "symbols": kept} | ({"default": kept[0]} if drawn.random.random() < 0.5 else {})
    if isinstance(schema, dict) and schema["type"] in ("array", "map"):
        within = "items" if schema["type"] == "array" else "values"
        return {**schema, within: evolved(drawn, schema[within])}
    wider = {"int": ["int", "long", "double"], "long": ["long", "double"], "float": ["float", "double"]}
    wider |= {"string": ["string", "bytes"], "bytes": ["bytes"]}
    return drawn.random.choice(wider[schema]) if isinstance(schema, str) and schema in wider else schema


def _record(drawn: Drawn, schema: dict[str, Any]) -> dict[str, Any]:
    fields = list[dict[str, Any]]()
    for field in schema["fields"]:
        drawn_at = drawn.random.random()
        if drawn_at < 0.15 and fields:
            continue
        made = {**field, "type": evolved(drawn, field["type"])}
        if drawn_at < 0.3:
            made = {**made, "name": drawn.name("renamed"), "aliases": [field["name"]]}
        if drawn_at > 0.85 and not isinstance(made["type"], list):
            made["type"] = ["null", made["type"]]
        fields.append(made)
    if drawn.random.random() < 0.4:
        fields.append({"name": drawn.name("added"), **drawn.random.choice(ADDED)})
    drawn.random.shuffle(fields)
    return {**schema, "fields": fields}


ADDED: list[dict[str, Any]] = [
    {"type": ["null", "string"], "default": None},
    {"type": "long", "default": 7},
    {"type": "string", "default": "none"},
    {"type": {"type": "array", "items": "int"}, "default": [1, 2]},
    {"type": {"type": "map", "values": "double"}, "default": {"a": 1.5}},
    {"type": "string"},
]
"""The last one has no default: what lacks it can't be read."""


def compared_pair(seed: int) -> tuple[int, int]:
    """Compare records that are read by another schema. Returns how many, and how many can't be read."""
    drawn = Drawn(Random(seed))
    writer = drawn.schema()
    reader = evolved(drawn, read_of(writer))
    payloads, bad = written(writer, [drawn.value(writer) for _ in range(PER_SCHEMA)]), 0
    for payload, ours in zip(payloads, decoded(writer, payloads, reader), strict=True):
        check(ours, read_by_fastavro(payload, writer, reader), f"seed {seed}: {writer} read as {reader}")
        bad += isinstance(ours, Exception)
    return PER_SCHEMA, bad
