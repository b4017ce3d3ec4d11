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
    """Raised for a text that is no Avro schema, or one that can't be read here. Only used within this folder."""


@dataclass(eq=False, slots=True)
class AvroType:
    """An Avro type. `kind` is the name of a primitive type, or `record`, `enum`, `fixed`, `array`, `map`, `union`.

    Attributes that a kind does not have are empty. A recursive type refers to itself.
    """

    kind: str
    name: str = ""
    logical: str = ""
    precision: int = 0
    scale: int = 0
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: Any = MISSING
    """The symbol of an enum that replaces symbols which the reader does not have."""
    item_type: AvroType | None = None
    """The type of an array's items, or of a map's values."""
    branches: tuple[AvroType, ...] = ()
    fields: tuple[AvroField, ...] = ()

    def __str__(self) -> str:
        if self.kind == "union":
            return "union of " + ", ".join(map(str, self.branches))
        if self.item_type is not None:
            return f"{self.kind} of {self.item_type if self.item_type.kind != 'record' else self.item_type.name}"
        text = f"{self.kind} {self.name}" if self.name else self.kind
        return f"{text} ({self.logical})" if self.logical else text

    @property
    def branches_without_null(self) -> tuple[AvroType, ...]:
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


def parse_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Return the type of a schema.

    `references` are the schemas that define the names which it uses, each behind the ones that it needs itself.

    Raises `AvroSchemaError`.
    """
    names = _Names()
    try:
        for reference in references:
            names.type_of(_json(reference), "")
        return names.type_of(_json(text), "")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AvroSchemaError(f"it is no Avro schema ({type(error).__name__}: {error})") from None


def _json(text: str) -> Any:
    """Parse JSON, without the byte order mark that editors put in front of a file."""
    return json.loads(text.removeprefix("\ufeff"))


@dataclass(slots=True)
class _Names:
    """The types that have a name, by their full names."""

    types: dict[str, AvroType] = field(default_factory=dict)

    def type_of(self, declaration: Any, namespace: str) -> AvroType:
        if isinstance(declaration, str):
            return self._look_up_type(declaration, namespace)
        if isinstance(declaration, list):
            return AvroType("union", branches=tuple(self.type_of(branch, namespace) for branch in declaration))
        if not isinstance(declaration, Mapping):
            raise TypeError(f"{declaration!r} is no type")
        kind = declaration["type"]
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(declaration, namespace)
        if kind == "array":
            return AvroType("array", item_type=self.type_of(declaration["items"], namespace))
        if kind == "map":
            return AvroType("map", item_type=self.type_of(declaration["values"], namespace))
        if not isinstance(kind, str) or kind not in PRIMITIVES:
            return self.type_of(kind, namespace)
        return AvroType(kind, **_logical(declaration))

    def _look_up_type(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        avro_type = self.types.get(_full(name, namespace)) or self.types.get(name)
        if avro_type is None:
            raise ValueError(f"the type {name!r} is not defined")
        return avro_type

    def _definition(self, declaration: Mapping[str, Any], namespace: str) -> AvroType:
        full = _full(declaration["name"], declaration.get("namespace", namespace))
        if full in self.types:
            raise ValueError(f"the type {full!r} is defined twice")
        if declaration["type"] == "enum":
            symbols = tuple(map(str, declaration["symbols"]))
            definition = AvroType("enum", full, symbols=symbols, default=declaration.get("default", MISSING))
        elif declaration["type"] == "fixed":
            size = declaration["size"]
            if type(size) is not int or size < 0:
                raise ValueError(f"a fixed has no size of {size!r}")
            definition = AvroType("fixed", full, size=size, **_logical(declaration))
        else:
            definition = AvroType("record", full)
        self.types[full] = definition
        scope = full.rpartition(".")[0]
        definition.fields = tuple(
            self._field(field, scope) for field in declaration.get("fields", ()) if definition.kind == "record"
        )
        return definition

    def _field(self, declaration: Mapping[str, Any], namespace: str) -> AvroField:
        aliases = tuple(map(str, declaration.get("aliases") or ()))
        type_ = self.type_of(declaration["type"], namespace)
        return AvroField(str(declaration["name"]), type_, aliases, declaration.get("default", MISSING))


def _full(name: str, namespace: str | None) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a valid logical type. The specification has invalid ones ignored."""
    kind, logical = declaration["type"], declaration.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = declaration.get("precision"), declaration.get("scale", 0)
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
