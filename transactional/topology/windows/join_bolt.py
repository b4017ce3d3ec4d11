"""`JoinBolt`: a windowed bolt that joins the tuples of several inputs, as Storm's `JoinBolt`.

The inputs are joined one after the other, in the order in which they were declared. The output follows the order of the
tuples on each side, so a replay emits the same tuples.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from transactional.model.errors import ConfigError, TopologyChanged
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Field, Schema, did_you_mean
from transactional.model.user_code.tuples import Tuple
from transactional.topology.windows.windowed import TupleWindow, WindowedBolt

_COLUMN: Final = re.compile(r"\s*(?:([^:\s]+)\s*:)?\s*([^:\s]+)(?:\s+[aA][sS]\s+(\w+))?\s*")
_STRUCT: Final = re.compile(r"struct<(.*)>", re.DOTALL)
_MAP: Final = re.compile(r"map<string,(.*)>", re.DOTALL)

Joined = Mapping[str, Tuple]
"""Tuples that belong together, by their input."""


@dataclass(frozen=True, slots=True)
class _Column:
    """A value of a tuple. `path` is its field, and the names within that. Without a `source`, it is that of the first
    input that has it."""

    source: str | None
    path: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> _Column:
        """Parse `field`, `input:field`, or `field.name` for a part of a map or a struct, each also with `as
        another_name`."""
        match = _COLUMN.fullmatch(text)
        if match is None:
            raise ConfigError(f"JoinBolt: {text.strip()!r} is not of the form 'field', 'input:field' or '… as name'")
        source, path, name = match.groups()
        return cls(source, tuple(path.split(".")), name or (path if source is None else f"{source}:{path}"))

    def value(self, joined: Joined) -> Any:
        """Return the first value that is not None, among the joined tuples."""
        tuples = joined.values() if self.source is None else filter(None, [joined.get(self.source)])
        return next((field_value for row in tuples if (field_value := self.read(row)) is not None), None)

    def read(self, row: Tuple) -> Any:
        """Return the value in one tuple; None if it has none."""
        field, *names = self.path
        inner = row[field] if field in row.fields else None
        for name in names:
            inner = None if inner is None else dict(inner).get(name)
        return inner

    def type(self, used_by: str, inputs: Mapping[str, Schema]) -> str:
        """Return the type of the value. Raises `ConfigError` if no input has it."""
        if self.source is not None and self.source not in inputs:
            hint = did_you_mean(self.source, inputs)
            raise ConfigError(f"{used_by}: {self.name!r} is of {self.source!r}, which is not part of the join{hint}")
        field, *names = self.path
        schemas = inputs.values() if self.source is None else [inputs[self.source]]
        fields = Schema(tuple({column.name: column for schema in schemas for column in schema}.values()))
        fields.require([field], of=self.source or "the join", used_by=used_by)
        return _inner_type(used_by, ".".join(self.path), fields[field].type, names)


@dataclass(frozen=True, slots=True)
class _Join:
    """An input after the first: the kind of join, its key, and the key of the input before it that it is joined
    with."""

    source: str
    kind: Literal["inner", "left", "right", "outer"]
    own_column: _Column
    prior_column: _Column

    def join_tuples(self, joined_rows: Sequence[Joined], tuples: Sequence[Tuple]) -> Iterator[Joined]:
        """Join the tuples of this input to the rows joined so far, in the order of both. None equals nothing."""
        partners, unmatched = defaultdict[Any, list[int]](list), set(range(len(tuples)))
        for place, row in enumerate(tuples):
            partners[_comparable(self.own_column.read(row))].append(place)
        for joined in joined_rows:
            key = _comparable(self.prior_column.value(joined))
            places = [] if key is None else partners.get(key, [])
            unmatched.difference_update(places)
            yield from ({**joined, self.source: tuples[place]} for place in places)
            # Storm's left join, unlike SQL's, leaves out what has no value to compare.
            if not places and (self.kind == "outer" or (self.kind == "left" and key is not None)):
                yield joined
        if self.kind in ("right", "outer"):
            yield from ({self.source: tuples[place]} for place in sorted(unmatched))


class JoinBolt(WindowedBolt):
    """Joins the tuples of each window, input by input, and emits the fields of `select`.

    Inputs are named by their component, or with `by="stream"` by their stream. Each is compared by one field, `x.y` for
    a part of a map or a struct, with a field of an input before it; their types must be equal. `select` is required.
    Late tuples go to a stream that a subclass declares in `streams`. Every call raises `ConfigError` for mistakes in
    its own arguments, and `build` for fields that the inputs do not have. If an input is removed while open windows
    have tuples of it, the run ends with `TopologyChanged`, and no tuple is lost.
    """

    def __init__(self, source: str, field: str, *, by: Literal["source", "stream"] = "source") -> None:
        if by not in ("source", "stream"):
            raise ConfigError(f"JoinBolt: by is 'source' or 'stream'; got {by!r}")
        self.by, self._first = by, source
        self._fields = {source: _parse_key(source, field)}
        self._joins: list[_Join] = []
        self._columns: tuple[_Column, ...] = ()
        self._stream: str | None = None
        self._name = "a JoinBolt"

    def join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input: pairs whose `field` equals that of `prior`, an input before it."""
        return self._add("inner", source, field, prior)

    def left_join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input, and keep joined tuples that have no partner in it.

        As in Storm, they are dropped if `prior` has no tuple among them, or None in its field.
        """
        return self._add("left", source, field, prior)

    def right_join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input, and keep its tuples that have no partner."""
        return self._add("right", source, field, prior)

    def outer_join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input, and keep all tuples that have no partner, on both sides."""
        return self._add("outer", source, field, prior)

    def select(self, columns: str) -> Self:
        """Select the fields to emit, separated by commas.

        `field` is the first value that is not None, of the inputs that have the field; `input:field` is that of one
        input. Fields have the names that are written here, or other ones by `… as name`.
        """
        self._columns = tuple(_Column.parse(text) for text in columns.split(","))
        return self

    def with_output_stream(self, stream: str) -> Self:
        """Emit on this stream instead of the default one."""
        self._stream = stream
        return self

    def declare_output(self, name: str, inputs: Mapping[tuple[str, str], Schema]) -> None:
        self._name = name
        fields = self._check_inputs(name, inputs)
        if not self._columns:
            raise ConfigError(f"{name} is a JoinBolt without .select('…'), so it emits nothing")
        for join in self._joins:
            own_type, prior_type = (column.type(name, fields) for column in (join.own_column, join.prior_column))
            if own_type != prior_type:
                raise ConfigError(
                    f"{name}: {join.own_column.name} is {own_type} and {join.prior_column.name} is {prior_type}, "
                    "which can't be compared; make the types equal in a bolt before it"
                )
        self._fields[self._first].type(name, fields)
        output = str(Schema(tuple(Field(column.name, column.type(name, fields)) for column in self._columns)))
        if self._stream is None:
            self.output = output  # type: ignore[misc]
        else:
            self.streams = {**self.streams, self._stream: output}  # type: ignore[misc]

    def execute(self, window: TupleWindow) -> None:
        stream = DEFAULT_STREAM if self._stream is None else self._stream
        for joined in self._join_window(window.get()):
            self.collector.emit(*(column.value(joined) for column in self._columns), stream=stream)

    def _join_window(self, tuples: Iterable[Tuple]) -> Sequence[Joined]:
        by_source = defaultdict[str, list[Tuple]](list)
        for row in tuples:
            by_source[row.source if self.by == "source" else row.stream].append(row)
        if removed := sorted(by_source.keys() - self._fields.keys()):
            raise TopologyChanged(
                f"{self._name} has open windows with tuples of {', '.join(removed)}, which it no longer joins: let it, "
                "until they have closed; or give the bolt another id and its state another table"
            )
        joined: list[Joined] = [{self._first: row} for row in by_source[self._first]]
        for join in self._joins:
            joined = list(join.join_tuples(joined, by_source[join.source]))
        return joined

    def _add(self, kind: Literal["inner", "left", "right", "outer"], source: str, field: str, prior: str) -> Self:
        if source in self._fields:
            raise ConfigError(f"JoinBolt: {source!r} is part of the join already, and can be once")
        if prior not in self._fields:
            inputs = ", ".join(self._fields)
            raise ConfigError(f"JoinBolt: {prior!r} is not part of the join yet; {source!r} can be joined to: {inputs}")
        self._fields[source] = _parse_key(source, field)
        self._joins.append(_Join(source, kind, self._fields[source], self._fields[prior]))
        return self

    def _check_inputs(self, name: str, inputs: Mapping[tuple[str, str], Schema]) -> dict[str, Schema]:
        """Return the fields of each input, by its name. Raises `ConfigError` unless the inputs are those of the
        join."""
        fields: dict[str, Schema] = {}
        for (source, stream), schema in inputs.items():
            name_of_input = source if self.by == "source" else stream
            if fields.setdefault(name_of_input, schema) != schema:
                raise ConfigError(f"{name} subscribes to two inputs of {name_of_input!r}, which have other fields")
        if fields.keys() != self._fields.keys():
            joins, subscribed = ", ".join(self._fields), ", ".join(fields)
            raise ConfigError(
                f"{name} joins the {self.by}s {joins}, and subscribes to {subscribed}: let them be the same"
            )
        return {source: fields[source] for source in self._fields}


def _parse_key(source: str, field: str) -> _Column:
    if ":" in field:
        raise ConfigError(f"JoinBolt: the field {field!r} is one of {source!r} already; write it without ':'")
    return _Column.parse(f"{source}:{field}")


def _comparable(key: Any) -> Any:
    """Return a value that is equal for equal keys, even for NaN and lists; None for None."""
    return repr(key) if key != key or isinstance(key, list | dict) else key


def _inner_type(used_by: str, path: str, type_: str, names: Sequence[str]) -> str:
    """Return the type of a part of a map or a struct."""
    for name in names:
        match = _STRUCT.fullmatch(type_) or _MAP.fullmatch(type_)
        if match is None:
            raise ConfigError(
                f"{used_by}: {path!r} needs {name!r} of a {type_}, which is no struct, and no map by string"
            )
        if match.re is _MAP:
            type_ = match[1]
            continue
        inner = Schema.parse(match[1])
        inner.require([name], of=f"{path!r}", used_by=used_by)
        type_ = inner[name].type
    return type_
