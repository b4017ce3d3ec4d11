"""`Collect`: an aggregate that keeps the tuples themselves, up to a limit, as JSON; `collected` reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transactional.core.ports import TupleAggregate
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.model.errors import ConfigError, TooManyCollected
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple, known_values
from transactional.topology.streams.aggregates.own import Combiner

LIMIT_MAX = 100_000
_BETWEEN = ",\n"
"""Tuples are one to a line: JSON writes a line break inside of text as `\\n`."""


class Collect(Combiner, TupleAggregate):
    """The tuples themselves, or some of their fields, in order: a JSON array of objects, which `collected` reads.

    Without `fields` all fields of the stream are kept. A group or window of more than `limit` tuples is
    `TooManyCollected`: nothing of that transaction is written.
    """

    output = "collect string"

    def __init__(self, *fields: str, limit: int = 1_000) -> None:
        if type(limit) is not int or not 0 < limit <= LIMIT_MAX:
            raise ConfigError(f"Collect: limit is {limit!r}; it is a number of tuples, from 1 to {LIMIT_MAX:,}")
        self.fields, self.limit, self._kept = fields, limit, Schema(())

    def __repr__(self) -> str:
        return f"Collect({', '.join([*map(repr, self.fields), f'limit={self.limit}'])})"

    def of(self, fields: Schema, used_by: str) -> Collect:
        """As it is for a stream with these fields. Raises `ConfigError`."""
        fields.require(self.fields, of="the stream", used_by=f"{used_by}: {self!r}")
        bound = Collect(*(self.fields or fields.names), limit=self.limit)
        bound._kept = fields.select(bound.fields)
        return bound

    def tuple_fields(self, column: str) -> Mapping[str, Schema]:
        """Those that are kept."""
        return {column: self._kept}

    def init(self, row: Tuple) -> str:
        """One tuple."""
        known = dict(zip(row.fields, known_values(row), strict=True))
        return f"[{values_to_json({name: known[name] for name in self.fields})}]"

    def combine(self, one: str, other: str) -> str:
        """Those of two parts."""
        return self.combine_all([one, other])

    def combine_all(self, parts: Sequence[str]) -> str:
        """Those of several parts, one after the other."""
        count = sum(part.count(_BETWEEN) + 1 for part in parts)
        if count > self.limit:
            raise TooManyCollected(
                f"Collect keeps at most {self.limit:,} tuples, and there are {count:,}: let fewer belong together, or "
                f"raise its limit, Collect(…, limit=…), which may be {LIMIT_MAX:,}"
            )
        return parts[0] if len(parts) == 1 else f"[{_BETWEEN.join(part[1:-1] for part in parts)}]"


def collected(text: str | None) -> list[dict[str, Any]]:
    """The tuples that a `Collect` has kept, in order, each as its values by field. None: there are none."""
    if text is None:
        return []
    return [values_from_json(each) for each in text[1:-1].split(_BETWEEN)]


def bound(aggregates: Iterable[tuple[str, Any]], fields: Schema) -> dict[str, Any]:
    """The aggregates as they are for a stream with these fields. Raises `ConfigError`."""
    return {name: each.of(fields, name) if isinstance(each, Collect) else each for name, each in aggregates}
