"""The tuples that bolts receive, and the keys of states.

A `Tuple` is Python's tuple with named fields; `tuple_class` makes one class per stream, so that making and reading a
tuple costs as little as a plain one. `PartlyReadable` stands for a tuple with values that Python can't represent: it
raises an error when such a value is read.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Self, SupportsIndex

from transactional.model.errors import SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import did_you_mean
from transactional.model.user_code.storm_names import IN_BOLTS

Key = tuple[Any, ...]
"""The values of a state's key columns, in order."""


class Tuple(tuple[Any, ...]):
    """One tuple of a stream: values by position, by field name (`t["word"]`), or as attributes (`t.word`).

    `fields` are the names of its values, `source` is the id of the component that emitted it, `stream` the name of the
    stream it was emitted on. A field is not an attribute if its name is taken, as `count` and `index` are by Python's
    tuples and `values` is here, or if it begins with an underscore: use `t["count"]`. Two of them are equal if fields,
    values, source and stream are; any other tuple is compared with the values only.
    """

    __slots__ = ()
    __match_args__ = ("fields", "values", "source", "stream")
    fields: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    stream: ClassVar[str] = DEFAULT_STREAM
    _attribute_of: ClassVar[Mapping[str | int, str]] = {}
    """The attribute of each value, by field name and by position."""
    _base: ClassVar[type[Tuple]]

    def __new__(cls, fields: Iterable[str], values: Iterable[Any], source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Create one tuple. To create many of one stream, call the result of `tuple_class`."""
        created: Self = tuple_class(tuple(fields), source, stream, cls)(values)
        return created

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in the order of the fields."""
        return tuple(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the values by field name."""
        return dict(zip(self.fields, self, strict=True))

    def __getitem__(self, field: Any) -> Any:
        if field.__class__ is str or field.__class__ is int:
            try:
                return getattr(self, self._attribute_of[field])  # twice as fast as calling `tuple.__getitem__`
            except KeyError:
                pass
        if isinstance(field, slice | SupportsIndex):
            return tuple.__getitem__(self, field)
        raise KeyError(self._missing_field_text(field))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._missing_field_text(name))

    def __eq__(self, other_tuple: object) -> bool:
        if isinstance(other_tuple, Tuple) and self._origin() != other_tuple._origin():
            return False
        return tuple.__eq__(self, other_tuple)

    def __ne__(self, other_tuple: object) -> bool:
        return not self == other_tuple

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        fields, source, stream = self._origin()
        name = self._base.__name__
        return f"{name}(fields={fields!r}, values={self._raw_values()!r}, source={source!r}, stream={stream!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._base, (self.fields, self._raw_values(), self.source, self.stream)

    def _raw_values(self) -> tuple[Any, ...]:
        """Return the values without the checks of a subclass."""
        return tuple(tuple.__iter__(self))

    def _origin(self) -> tuple[Any, ...]:
        return self.fields, self.source, self.stream

    def _missing_field_text(self, field: object) -> str:
        hint = did_you_mean(field, self.fields) if isinstance(field, str) else ""
        if isinstance(field, str) and field.startswith("get") and field in IN_BOLTS:
            hint = f"; here it is {IN_BOLTS[field]}"
        return f"the tuple has no field {field!r}; its fields are {', '.join(self.fields)}{hint}"

    @classmethod
    def _make_descriptor(cls, position: int) -> Any:
        """Return the descriptor for the value at a position."""
        return _tuple_descriptor(position)


@cache
def _tuple_descriptor(position: int) -> Any:
    """Return a named tuple's descriptor for the field at a position: it reads the value in C."""
    return vars(namedtuple("Values", [f"at_{number}" for number in range(position + 1)]))[f"at_{position}"]


Tuple._base = Tuple


def tuple_class(
    fields: tuple[str, ...], source: str, stream: str, base: type[Tuple] = Tuple
) -> Callable[[Iterable[Any]], Any]:
    """Return the class of one stream's tuples, which is created once, and called with the values only.

    Calling it is as fast as making a plain tuple.
    """
    return _make_class(fields, source, stream, base)


@lru_cache(1_024)
def _make_class(fields: tuple[str, ...], source: str, stream: str, base: type[Tuple]) -> type[Tuple]:
    reserved_names = set(dir(base))
    attribute_of: dict[str | int, str] = {}
    members: dict[str, Any] = {"fields": fields, "source": source, "stream": stream, "_base": base}
    for position, name in enumerate(fields):
        is_hidden = name in reserved_names or name in members or name.startswith("_")
        attribute = f"_{position}" if is_hidden else name
        members[attribute] = base._make_descriptor(position)
        attribute_of.setdefault(name, attribute)
        attribute_of[position] = attribute_of[position - len(fields)] = attribute
    return type(
        base.__name__, (base,), {"__slots__": (), "__new__": tuple.__new__, "_attribute_of": attribute_of, **members}
    )


# --- values that Arrow can represent and Python can't: times outside the years 1 to 9999 --------------------------


@dataclass(frozen=True, slots=True)
class BeyondPython:
    """A value that Python can't represent: its Arrow type, and its number, or its type again if it is nested."""

    type: str
    text: str


class PartlyReadable(Tuple):
    """A tuple with values that Python can't represent: `BeyondPython` stands for them, and no bolt ever gets one."""

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """The values in order. Raises `SchemaMismatch` for the first one that Python can't represent."""
        return tuple(self)

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, slice):
            return tuple(map(self._readable, self._raw_values()[field], self.fields[field]))
        element = super().__getitem__(field)
        return self._readable(element, self.fields[field]) if isinstance(element, BeyondPython) else element

    def __iter__(self) -> Iterator[Any]:
        return map(self._readable, super().__iter__(), self.fields)

    def __add__(self, addend: Any) -> Any:
        return self.values + addend

    def __radd__(self, addend: Any) -> Any:
        return addend + self.values

    def _readable(self, element: Any, field: str) -> Any:
        if isinstance(element, BeyondPython):
            raise SchemaMismatch(
                f"the field {field!r} of a tuple of {self.source!r} is {element.text} ({element.type}), "
                "which Python can't represent: its years are 1 to 9999; a bolt on Arrow batches can process it"
            )
        return element

    @classmethod
    def _make_descriptor(cls, position: int) -> Any:
        return property(lambda self: self._readable(self._raw_values()[position], self.fields[position]))


def raw_values(row: Tuple) -> tuple[Any, ...]:
    """Return the values of a tuple, with placeholders for those that Python can't represent."""
    return row._raw_values()
