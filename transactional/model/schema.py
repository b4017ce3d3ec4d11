"""`Schema`: the declared fields of a stream or table, written in Spark's DDL (`carrier string, count long`)."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from transactional.model.errors import ConfigError

_ALIASES = {
    "tinyint": "byte",
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "real": "float",
    "str": "string",
    "bool": "boolean",
    "bytes": "binary",
    "timestamp_ltz": "timestamp",
}
_PRIMITIVES = frozenset(
    {"string", "binary", "boolean", "byte", "short", "int", "long", "float", "double", "date", "timestamp"}
)
DECIMAL_DIGITS_MAX = 38
"""Spark's, Arrow's and Delta's limit."""
_NESTED = re.compile(r"(array|map|struct|decimal)\s*[<(](.*)[>)]", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))\s*[:\s]\s*(.+?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Field:
    """A named column. `type` is a Spark type in its simple form: `long`, `array<string>`, `decimal(10,2)`."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{quote_name(self.name)} {self.type}"


@dataclass(frozen=True)
class Schema:
    """An ordered list of fields with distinct names."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        names = self.names
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(f"field {', '.join(repeated)} is declared more than once in '{self}'")

    @classmethod
    def parse(cls, text: str) -> Schema:
        """Parse a DDL string such as `carrier string, count long`. Raises `ConfigError` that explains what is wrong."""
        try:
            return _parse(text)
        except RecursionError:
            raise ConfigError(f"the types in '{text[:100]}…' are nested too deeply") from None

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The field names, in order."""
        return tuple(field.name for field in self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __str__(self) -> str:
        return ", ".join(str(field) for field in self.fields)

    def __getitem__(self, name: str) -> Field:
        field = next((field for field in self.fields if field.name == name), None)
        if field is None:
            raise KeyError(f"{name!r} is not one of the fields {', '.join(self.names)}")
        return field

    def require(self, names: Iterable[str], *, of: str, used_by: str) -> None:
        """Raise `ConfigError` if one of `names` is not a field; `of` and `used_by` name the two components."""
        for name in names:
            if name not in self.names:
                raise ConfigError(
                    f"{used_by} uses field {name!r}, which {of} does not have; its fields are: "
                    f"{', '.join(self.names) or '(none)'}{did_you_mean(name, self.names)}"
                )

    def select(self, names: Iterable[str]) -> Schema:
        """Return the schema of the named fields, in the given order."""
        return Schema(tuple(self[name] for name in names))


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """` — did you mean 'x'?` for the closest of `right`, or nothing."""
    close = difflib.get_close_matches(wrong, list(right), n=1)
    return f" — did you mean {close[0]!r}?" if close else ""


def quote_name(name: str) -> str:
    """Return a field's name as DDL has it: in backquotes, unless it is a word."""
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


def struct_type(fields: Iterable[tuple[str, str]]) -> str:
    """Return the simple form of a struct of these names and types."""
    return "struct<" + ",".join(f"{quote_name(name)}:{type_}" for name, type_ in fields) + ">"


def split_types(text: str) -> list[str]:
    """Split a text at its commas, except within brackets or backquotes."""
    parts, depth, start, is_quoted = [], 0, 0, False
    for position, character in enumerate(text):
        is_quoted ^= character == "`"
        if is_quoted:
            continue
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


@functools.lru_cache(256)
def _parse(text: str) -> Schema:
    return Schema(tuple(_parse_field(part, text) for part in split_types(text)) if text.strip() else ())


def _parse_field(part: str, whole: str) -> Field:
    match = _FIELD.fullmatch(part)
    if match is None:
        raise ConfigError(f"{part.strip()!r} in '{whole}' is not of the form 'name type'")
    return Field(match[2] or match[1].replace("``", "`"), parse_type(match[3]))


def parse_type(text: str) -> str:
    """Return the simple form of a Spark type. Raises `ConfigError` for a type that is not supported."""
    name = text.strip().lower()
    name = _ALIASES.get(name, name)
    if name in _PRIMITIVES:
        return name
    match = _NESTED.fullmatch(text.strip())
    if match is None:
        raise ConfigError(
            f"unknown type {text.strip()!r}{did_you_mean(name, _PRIMITIVES)}; known: {', '.join(sorted(_PRIMITIVES))}, "
            "decimal(p,s), array<…>, map<…,…>, struct<…>"
        )
    return _parse_nested(match[1].lower(), match[2], text)


def _parse_nested(kind: str, inner: str, text: str) -> str:
    parts = split_types(inner)
    if kind == "decimal" and len(parts) == 2 and all(re.fullmatch(r"\s*[0-9]{1,2}\s*", part) for part in parts):
        precision, scale = map(int, parts)
        if not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX or not precision:
            raise ConfigError(
                f"type {text.strip()!r}: a decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and at most as many "
                "decimal places"
            )
        return f"decimal({precision},{scale})"
    if kind == "array" and len(parts) == 1:
        return f"array<{parse_type(inner)}>"
    if kind == "map" and len(parts) == 2:
        return f"map<{parse_type(parts[0])},{parse_type(parts[1])}>"
    if kind == "struct":
        return struct_type((field.name, field.type) for field in Schema.parse(inner))
    raise ConfigError(f"type {text.strip()!r} is not complete")
