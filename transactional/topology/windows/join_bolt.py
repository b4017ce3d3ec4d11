"""`JoinBolt`: a windowed bolt that joins the tuples of several inputs (Storm's `JoinBolt`)."""

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
    """A value of a tuple: `path` is its field, and the names within it. `source` is None for the first that has it."""

    source: str | None
    path: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> _Column:
        """`field`, `input:field`, `field.name` for what is in a map or a struct, each also with `as another_name`."""
        match = _COLUMN.fullmatch(text)
        if match is None:
            raise ConfigError(f"JoinBolt: {text.strip()!r} is not of the form 'field', 'input:field' or '… as name'")
        source, path, name = match.groups()
        return cls(source, tuple(path.split(".")), name or (path if source is None else f"{source}:{path}"))

    def value(self, joined: Joined) -> Any:
        """The first that is not None."""
        tuples = joined.values() if self.source is None else filter(None, [joined.get(self.source)])
        return next((value for each in tuples if (value := self.of(each)) is not None), None)

    def of(self, each: Tuple) -> Any:
        """The value in one tuple; None if it has none."""
        field, *names = self.path
        value = each[field] if field in each.fields else None
        for name in names:
            value = None if value is None else dict(value).get(name)
        return value

    def type(self, used_by: str, inputs: Mapping[str, Schema]) -> str:
        """Its type. Raises `ConfigError` if no input has it."""
        if self.source is not None and self.source not in inputs:
            hint = did_you_mean(self.source, inputs)
            raise ConfigError(f"{used_by}: {self.name!r} is of {self.source!r}, which is not part of the join{hint}")
        field, *names = self.path
        schemas = inputs.values() if self.source is None else [inputs[self.source]]
        fields = Schema(tuple({each.name: each for schema in schemas for each in schema}.values()))
        fields.require([field], of=self.source or "the join", used_by=used_by)
        return _inner_type(used_by, ".".join(self.path), fields[field].type, names)


@dataclass(frozen=True, slots=True)
class _Join:
    """An input after the first: how it is joined, by which of its values, and with which of one before it."""

    source: str
    kind: Literal["inner", "left", "right", "outer"]
    own: _Column
    prior: _Column

    def join_tuples(self, before: Sequence[Joined], tuples: Sequence[Tuple]) -> Iterator[Joined]:
        """Join the tuples of this input to the rows joined so far, in the order of both. None equals nothing."""
        partners, alone = defaultdict[Any, list[int]](list), set(range(len(tuples)))
        for place, each in enumerate(tuples):
            partners[_key_of(self.own.of(each))].append(place)
        for joined in before:
            key = _key_of(self.prior.value(joined))
            places = [] if key is None else partners.get(key, [])
            alone.difference_update(places)
            yield from ({**joined, self.source: tuples[place]} for place in places)
            # Storm's left join, unlike SQL's, leaves out what has no value to compare.
            if not places and (self.kind == "outer" or (self.kind == "left" and key is not None)):
                yield joined
        if self.kind in ("right", "outer"):
            yield from ({self.source: tuples[place]} for place in sorted(alone))


class JoinBolt(WindowedBolt):
    """Joins the tuples of each window, input by input, and emits the fields of `select`.

    Its inputs are known by their component, or with `by="stream"` by their stream. Each is compared by one field, `x.y`
    for what is in a map or a struct, with that of an input before it; the types have to be equal. `select` is needed.
    Late tuples go to a stream of a subclass that declares it in `streams`. Every call raises `ConfigError` for what is
    wrong on its own, and `build` for what its inputs do not have. Tuples in open windows of an input that is gone end a
    run with `TopologyChanged`, and are not lost.
    """

    def __init__(self, source: str, field: str, *, by: Literal["source", "stream"] = "source") -> None:
        if by not in ("source", "stream"):
            raise ConfigError(f"JoinBolt: by is 'source' or 'stream'; got {by!r}")
        self.by, self._first = by, source
        self._fields = {source: _compared(source, field)}
        self._joins: list[_Join] = []
        self._columns: tuple[_Column, ...] = ()
        self._stream: str | None = None
        self._name = "a JoinBolt"

    def join(self, source: str, field: str, prior: str) -> Self:
        """Join one more input: pairs whose `field` equals that of `prior`, an input before it."""
        return self._add("inner", source, field, prior)

    def left_join(self, source: str, field: str, prior: str) -> Self:
        """The same, and what is joined so far without a partner; but not, as in Storm, if `prior` has no tuple in it
        or None in its field."""
        return self._add("left", source, field, prior)

    def right_join(self, source: str, field: str, prior: str) -> Self:
        """The same as `join`, and the tuples of this input without a partner."""
        return self._add("right", source, field, prior)

    def outer_join(self, source: str, field: str, prior: str) -> Self:
        """The same as `join`, and all that has no partner, on both sides."""
        return self._add("outer", source, field, prior)

    def select(self, columns: str) -> Self:
        """What is emitted, separated by commas: `field` is the first value that is not None of the inputs that have it,
        `input:field` that of one. Fields are named as they are written here, or by `… as name`."""
        self._columns = tuple(_Column.parse(text) for text in columns.split(","))
        return self

    def with_output_stream(self, stream: str) -> Self:
        """Emit on this stream instead of the default one."""
        self._stream = stream
        return self

    def declare_output(self, name: str, inputs: Mapping[tuple[str, str], Schema]) -> None:
        """The selected fields, with the types of the inputs."""
        self._name = name
        fields = self._fields_of(name, inputs)
        if not self._columns:
            raise ConfigError(f"{name} is a JoinBolt without .select('…'), so it emits nothing")
        for join in self._joins:
            own, prior = (each.type(name, fields) for each in (join.own, join.prior))
            if own != prior:
                raise ConfigError(
                    f"{name}: {join.own.name} is {own} and {join.prior.name} is {prior}, which can't be compared; make "
                    "the types equal in a bolt before it"
                )
        self._fields[self._first].type(name, fields)
        made = str(Schema(tuple(Field(each.name, each.type(name, fields)) for each in self._columns)))
        if self._stream is None:
            self.output = made  # type: ignore[misc]
        else:
            self.streams = {**self.streams, self._stream: made}  # type: ignore[misc]

    def execute(self, window: TupleWindow) -> None:
        """Join the tuples of a window."""
        stream = DEFAULT_STREAM if self._stream is None else self._stream
        for joined in self._joined(window.get()):
            self.collector.emit(*(column.value(joined) for column in self._columns), stream=stream)

    def _joined(self, tuples: Iterable[Tuple]) -> Sequence[Joined]:
        by_source = defaultdict[str, list[Tuple]](list)
        for each in tuples:
            by_source[each.source if self.by == "source" else each.stream].append(each)
        if gone := sorted(by_source.keys() - self._fields.keys()):
            raise TopologyChanged(
                f"{self._name} has open windows with tuples of {', '.join(gone)}, which it no longer joins: let it, "
                "until they have closed; or give the bolt another id and its state another table"
            )
        joined: list[Joined] = [{self._first: each} for each in by_source[self._first]]
        for join in self._joins:
            joined = list(join.join_tuples(joined, by_source[join.source]))
        return joined

    def _add(self, kind: Literal["inner", "left", "right", "outer"], source: str, field: str, prior: str) -> Self:
        if source in self._fields:
            raise ConfigError(f"JoinBolt: {source!r} is part of the join already, and can be once")
        if prior not in self._fields:
            known = ", ".join(self._fields)
            raise ConfigError(f"JoinBolt: {prior!r} is not part of the join yet; {source!r} can be joined to: {known}")
        self._fields[source] = _compared(source, field)
        self._joins.append(_Join(source, kind, self._fields[source], self._fields[prior]))
        return self

    def _fields_of(self, name: str, inputs: Mapping[tuple[str, str], Schema]) -> dict[str, Schema]:
        """The fields of each input, by what it is known by. Raises `ConfigError` unless they are those of the join."""
        fields: dict[str, Schema] = {}
        for (source, stream), schema in inputs.items():
            known = source if self.by == "source" else stream
            if fields.setdefault(known, schema) != schema:
                raise ConfigError(f"{name} subscribes to two inputs of {known!r}, which have other fields")
        if fields.keys() != self._fields.keys():
            joins, gets = ", ".join(self._fields), ", ".join(fields)
            raise ConfigError(f"{name} joins the {self.by}s {joins}, and subscribes to {gets}: let them be the same")
        return {source: fields[source] for source in self._fields}


def _compared(source: str, field: str) -> _Column:
    if ":" in field:
        raise ConfigError(f"JoinBolt: the field {field!r} is one of {source!r} already; write it without ':'")
    return _Column.parse(f"{source}:{field}")


def _key_of(value: Any) -> Any:
    """What equal values have in common, also NaNs and lists; None for None."""
    return repr(value) if value != value or isinstance(value, list | dict) else value


def _inner_type(used_by: str, path: str, type_: str, names: Sequence[str]) -> str:
    """The type of what is in a map or a struct."""
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
