"""Avro schemas, read from their JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MISSING: Final = object()
"""A field without a default."""


class AvroSchemaError(Exception):
    """A text is no Avro schema, or none that can be read here. Only used within this folder."""


@dataclass(eq=False, slots=True)
class AvroType:
    """A type: `kind` is that of a primitive one, or `record`, `enum`, `fixed`, `array`, `map`, `union`.

    What is empty, its kind does not have. Types refer to themselves if they are recursive.
    """

    kind: str
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: Any = MISSING
    """Of an enum: the symbol for those that the reader does not have."""
    of: AvroType | None = None
    """The items of an array, the values of a map."""
    branches: tuple[AvroType, ...] = ()
    fields: tuple[AvroField, ...] = ()

    def __str__(self) -> str:
        if self.kind == "union":
            return "union of " + ", ".join(map(str, self.branches))
        if self.of is not None:
            return f"{self.kind} of {self.of if self.of.kind != 'record' else self.of.name}"
        named = f"{self.kind} {self.name}" if self.name else self.kind
        return f"{named} ({self.logical})" if self.logical else named

    @property
    def beside_null(self) -> tuple[AvroType, ...]:
        """The branches of a union without null; of another type, the type itself."""
        if self.kind != "union":
            return (self,)
        return tuple(branch for branch in self.branches if branch.kind != "null")


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = MISSING


def parsed(text: str, references: Sequence[str] = ()) -> AvroType:
    """The type of a schema; `references` are schemas that define names which it uses, each after those that it needs.

    Raises `AvroSchemaError`.
    """
    names = _Names()
    try:
        for each in references:
            names.type_of(_json(each), "")
        return names.type_of(_json(text), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AvroSchemaError(f"it is no Avro schema ({type(error).__name__}: {error})") from None


def _json(text: str) -> Any:
    """JSON, also behind a byte order mark, which editors put in front of a file."""
    return json.loads(text.removeprefix("\ufeff"))


@dataclass(slots=True)
class _Names:
    """The types that have a name, by their full names."""

    known: dict[str, AvroType] = field(default_factory=dict)

    def type_of(self, given: Any, namespace: str) -> AvroType:
        if isinstance(given, str):
            return self._named(given, namespace)
        if isinstance(given, list):
            return AvroType("union", branches=tuple(self.type_of(each, namespace) for each in given))
        if not isinstance(given, Mapping):
            raise TypeError(f"{given!r} is no type")
        kind = given["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(given, namespace)
        if kind == "array":
            return AvroType("array", of=self.type_of(given["items"], namespace))
        if kind == "map":
            return AvroType("map", of=self.type_of(given["values"], namespace))
        if not isinstance(kind, str) or kind not in PRIMITIVES:
            return self.type_of(kind, namespace)
        return AvroType(kind, **_logical(given))

    def _named(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self.known.get(_full(name, namespace)) or self.known.get(name)
        if found is None:
            raise ValueError(f"the type {name!r} is not defined")
        return found

    def _definition(self, given: Mapping[str, Any], namespace: str) -> AvroType:
        full = _full(given["name"], given.get("namespace", namespace))
        if full in self.known:
            raise ValueError(f"the type {full!r} is defined twice")
        if given["type"] == "enum":
            symbols = tuple(map(str, given["symbols"]))
            made = AvroType("enum", full, symbols=symbols, default=given.get("default", MISSING))
        elif given["type"] == "fixed":
            size = given["size"]
            if type(size) is not int or size < 0:
                raise ValueError(f"a fixed has no size of {size!r}")
            made = AvroType("fixed", full, size=size, **_logical(given))
        else:
            made = AvroType("record", full)
        self.known[full] = made
        within = full.rpartition(".")[0]
        made.fields = tuple(self._field(each, within) for each in given.get("fields", ()) if made.kind == "record")
        return made

    def _field(self, given: Mapping[str, Any], namespace: str) -> AvroField:
        aliases = tuple(map(str, given.get("aliases") or ()))
        type_ = self.type_of(given["type"], namespace)
        return AvroField(str(given["name"]), type_, aliases, given.get("default", MISSING))


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is valid of a logical type: the specification has others ignored."""
    kind, logical = given["type"], given.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = given.get("precision"), given.get("scale", 0)
        if type(precision) is int and type(scale) is int and 0 <= scale <= precision:
            return {"logical": logical, "precision": precision, "scale": scale}
        return {}
    return {"logical": logical} if logical in _LOGICAL.get(kind, ()) else {}


_TIMES = tuple(f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos"))
_LOGICAL: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("date", "time-millis"),
    "long": ("time-micros", *_TIMES),
    "string": ("uuid",),
    "fixed": ("uuid", "duration"),
}
