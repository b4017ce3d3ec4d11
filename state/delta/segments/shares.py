"""The division of a compaction among tasks.

A task takes all rows of its keys, so that no task needs rows of another one.
"""

from __future__ import annotations

from state.delta.tables.sql import DATA_FUSION
from transactional.model.schema import Field, Schema

SHARE_ROWS = 16_000_000
"""Largest number of rows that a task combines if keys are spread evenly, at half a second for each ten million rows.
Strings of one length that differ in few places are spread less evenly."""
_PRIME, _FACTOR = 10_007, 31
"""A prime: keys that are all even, or all full minutes, are spread, too."""
_INSIDE = {1: 17, 4: 37, 9: 59}
"""How far from the end of a string characters are looked at, with factors; of ASCII, of other texts about there."""
_NUMBERS = frozenset({"byte", "short", "int", "long", "boolean", "date", "timestamp"})


def shares_of(rows: int, key: Schema) -> int:
    """Return how many tasks share a number of rows: at least one, and one if no column of the key is numbered."""
    return max(1, -(-rows // SHARE_ROWS)) if _numbers(key) else 1


def is_in_share(key: Schema, number: int, shares: int) -> str:
    """Return the condition, for DataFusion, that a row's key is in share `number`. A key is in exactly one share."""
    numbers = _numbers(key)
    mixed = f"abs({numbers[0]} % {_PRIME})"
    for number_sql in numbers[1:]:
        mixed = f"(({mixed} * {_FACTOR} + abs({number_sql} % {_PRIME})) % {_PRIME})"
    return f"{mixed} % {shares} = {number}"


def _numbers(key: Schema) -> list[str]:
    """Return a number as SQL for every key column that has one. Equal values have equal numbers, and NULL has one."""
    return [f"COALESCE({number}, 0)" for column in key if (number := _number(column))]


def _number(column: Field) -> str:
    name = DATA_FUSION.name(column.name)
    if column.type in _NUMBERS:
        return f"CAST({name} AS BIGINT)"
    if column.type == "string":
        # A real hash would take three times as long as all else. Most keys differ in length, or in one of these places.
        size = f"octet_length({name})"
        inside = [f"{factor} * ascii(substr({name}, {size} - {back}))" for back, factor in _INSIDE.items()]
        return f"CAST({' + '.join([size, f'131 * ascii(right({name}, 1))', *inside])} AS BIGINT)"
    return ""
