"""Hostile JSON records by seeds: many that are read at once have to be read as each of them is alone."""

from __future__ import annotations

import random

import pyarrow as pa

from spouts.decoding.json_records import _Parser
from transactional.model.schema import Schema

SCHEMA = Schema.parse(
    "a string, b long, c double, d decimal(5,2), e date, g array<int>, h struct<x:int,y:timestamp>, i array<double>"
)
ODD: tuple[bytes | None, ...] = (
    *(b"{}", b"}{", b'{"a":1}', b'{"b":"5"}', b'{"b":2.5}', b'{"c":NaN}', b'{"c":-Infinity}', b'{"c":1e999}'),
    *(b'{"i":[1.5,NaN]}', b'{"z":NaN}', b'{"d":1000}', b'{"e":19000}', b"[1]", b"null", None, b"", b'{"a":"\0"}'),
    *(b'{"a":"\xff"}', b"\xef\xbb\xbf{}", b" {} ", b"{}{}", b"{}\n{}", b'{\n"b":1\n}', b'{"a":"x\ny"}', b'{"a":{}'),
    *(b'{"b":1}}', b'{"a":[{}', b"{}]}", b"\x0b{}\x0c", b'{"b":9223372036854775808}', b'{"a":"\\ud800"}'),
    *(b'{"z":1,"z":2}', b'{"b":1,"b":2}', b'{"a":1,}', b'{"a":"' + b"k" * 3000 + b'"}', b'{"g":[1,"2"]}'),
    *(b'{"h":{"x":1.5}}', b'{"h":null}', b"\xc2\xa0{}"),
)
DAMAGE = b'{}[]",:0a \n\xff\x00\xc3\xa9\\'
SHARES, SIZES = (0, 0.0001, 0.001, 0.01, 0.1, 0.5, 1), (1, 7, 100, 999, 1_000, 1_001, 3_000, 5_000)
ROWS = 200
"""Good records of a seed; more are repeated."""


def _good(chance: random.Random) -> bytes:
    return (
        f'{{"a":"v{chance.randrange(99)}","b":{chance.randrange(9**9)},"c":{chance.random()},"d":{chance.randrange(99)}.25,'
        f'"e":"2024-02-0{chance.randrange(1, 9)}","g":[1,{chance.randrange(9)}],"i":[0.5,{chance.random()}],'
        '"h":{"x":3,"y":"2024-01-01T00:00:00"}}'
    ).encode()


def _hostile(chance: random.Random) -> bytes | None:
    if chance.random() < 0.5:
        return chance.choice(ODD)
    record = bytearray(_good(chance))
    for _ in range(chance.randrange(1, 4)):
        record[chance.randrange(len(record))] = chance.choice(DAMAGE)
    return bytes(record)


def compared(seed: int, records: int) -> tuple[int, int]:
    """Compare so many records in pieces of all sizes; how many there were, and how many of them bad."""
    chance, parser = random.Random(seed), _Parser(SCHEMA)
    good, alone, done, bad_ones = [_good(chance) for _ in range(ROWS)], _Alone(parser), 0, 0
    while done < records:
        share, size = chance.choice(SHARES), chance.choice(SIZES)
        values = [_hostile(chance) if chance.random() < share else chance.choice(good) for _ in range(size)]
        skipped = chance.randrange(3)  # a slice of a longer column
        column = pa.array([b"x"] * skipped + values, pa.binary())[skipped:]
        found, bad = parser.parse(column)
        expected = [alone(value) for value in values]
        assert bad == [row for row, each in enumerate(expected) if each is None], f"seed {seed}, after {done} records"
        assert [repr(row) for row in found.to_pylist()] == [row for row in expected if row is not None], f"seed {seed}"
        done, bad_ones = done + size, bad_ones + len(bad)
    return done, bad_ones


class _Alone:
    """What a record is by itself: its row as text, or None."""

    def __init__(self, parser: _Parser) -> None:
        self._parser = parser
        self._known = dict[bytes | None, str | None]()

    def __call__(self, value: bytes | None) -> str | None:
        if value not in self._known:
            found, bad = self._parser.parse(pa.array([value], pa.binary()))
            self._known[value] = None if bad else repr(found.to_pylist()[0])
        return self._known[value]
