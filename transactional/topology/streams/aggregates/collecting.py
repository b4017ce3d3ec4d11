"""`Collect`: an aggregate that keeps the tuples themselves, as JSON; `collected` reads it back.

The JSON has one tuple a line, so that parts are combined, and counted, without parsing it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transactional.core.ports import TupleAggregate
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.model.errors import ConfigError, TooManyCollected
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple, raw_values
from transactional.topology.streams.aggregates.own import Combiner

LIMIT_MAX = 100_000
_SEPARATOR = ",\n"
"""The separator between two tuples. Inside of text, JSON writes a line break as `\\n`."""


class Collect(Combiner, TupleAggregate):
    """The tuples themselves, or some of their fields, in order: a JSON array of objects, which `collected` reads.

    Without `fields`, all fields of the stream are kept. A group or window of more than `limit` tuples raises
    `TooManyCollected`, and nothing of its transaction is written.
    """

    output = "collect string"

    def __init__(self, *fields: str, limit: int = 1_000) -> None:
        if type(limit) is not int or not 0 < limit <= LIMIT_MAX:
            raise ConfigError(f"Collect: limit is {limit!r}; it is a number of tuples, from 1 to {LIMIT_MAX:,}")
        self.fields, self.limit, self._tuple_schema = fields, limit, Schema(())

    def __repr__(self) -> str:
        return f"Collect({', '.join([*map(repr, self.fields), f'limit={self.limit}'])})"

    def bind(self, fields: Schema, used_by: str) -> Collect:
        """Return a copy for a stream with these fields. Raises `ConfigError`."""
        fields.require(self.fields, of="the stream", used_by=f"{used_by}: {self!r}")
        bound = Collect(*(self.fields or fields.names), limit=self.limit)
        bound._tuple_schema = fields.select(bound.fields)
        return bound

    def tuple_fields(self, column: str) -> Mapping[str, Schema]:
        return {column: self._tuple_schema}

    def init(self, row: Tuple) -> str:
        by_field = dict(zip(row.fields, raw_values(row), strict=True))
        return f"[{values_to_json({name: by_field[name] for name in self.fields})}]"

    def combine(self, first: str, second: str) -> str:
        return self.combine_all([first, second])

    def combine_all(self, parts: Sequence[str]) -> str:
        """Concatenate the tuples of several parts. Raises `TooManyCollected`."""
        count = sum(part.count(_SEPARATOR) + 1 for part in parts)
        if count > self.limit:
            raise TooManyCollected(
                f"Collect keeps at most {self.limit:,} tuples, and there are {count:,}: let fewer belong together, or "
                f"raise its limit, Collect(…, limit=…), which may be {LIMIT_MAX:,}"
            )
        return parts[0] if len(parts) == 1 else f"[{_SEPARATOR.join(part[1:-1] for part in parts)}]"


def collected(text: str | None) -> list[dict[str, Any]]:
    """Return the tuples that a `Collect` has kept, in order, each as its values by field. None is read as no tuple."""
    if text is None:
        return []
    return [values_from_json(line) for line in text[1:-1].split(_SEPARATOR)]


def bind_aggregates(aggregates: Iterable[tuple[str, Any]], fields: Schema) -> dict[str, Any]:
    """Bind every `Collect` to a stream with these fields. Raises `ConfigError`."""
    return {
        name: aggregate.bind(fields, name) if isinstance(aggregate, Collect) else aggregate
        for name, aggregate in aggregates
    }
