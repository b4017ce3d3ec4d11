"""Keys of all types, and the tasks to which they belong; another process imports this without what tests need."""

from __future__ import annotations

import datetime
from decimal import Decimal

from transactional.model.arrow import arrow_schema, batch_from_rows, task_of_rows
from transactional.model.schema import Schema

NOON = datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.UTC)
KEYS = [
    ("cat", 1, 0.0, NOON, NOON.date(), Decimal("1.10"), b"a", True, ["x"]),
    ("dog", -7, -0.0, None, None, Decimal("2.00"), b"", False, [None]),
    (None, None, 2.5, NOON, None, None, None, None, None),
    ("None", 2**62, float("nan"), NOON, NOON.date(), Decimal("-3.30"), b"\0", None, []),
]
KEY_FIELDS = "a string, b long, c double, d timestamp, e date, f decimal(5,2), g binary, h boolean, i array<string>"


def tasks_of_keys() -> list[int]:
    made = batch_from_rows(KEYS, arrow_schema(Schema.parse(KEY_FIELDS)), component="keys")
    return [task for name in made.schema.names for task in task_of_rows(made, [name], 1009).to_pylist()]
