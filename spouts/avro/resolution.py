"""How a writer's schema is read as what a reader wants, as Avro's specification has it: field by field, by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spouts.avro import nested, nodes
from spouts.avro.nodes import AvroNode
from spouts.avro.schema import AvroSchemaError, AvroType
from spouts.avro.wanted import Wanted, WantedField
from transactional.model.arrow import spark_type
from transactional.model.arrow.zones import column_with_zone, zone_of_naive_times
from transactional.model.schema import DECIMAL_DIGITS_MAX

_INTEGERS = {pa.int8(): ("int",), pa.int16(): ("int",), pa.int32(): ("int",), pa.int64(): ("int", "long")}
_FLOATS = {pa.float32(): ("int", "long", "float"), pa.float64(): ("int", "long", "float", "double")}


def has_records(writer: AvroType) -> bool:
    """Whether a writer's values are records: of one type, or of each in a union with no other type than null."""
    return bool(writer.beside_null) and all(branch.kind == "record" for branch in writer.beside_null)


def record_reader(writer: AvroType, wanted: Wanted) -> nested.Record | nested.RecordUnion:
    """The node that reads a writer's records. Raises `AvroSchemaError` for one that has values of other types."""
    if not has_records(writer):
        rule = ": all types of a union have to be records, or null" if writer.kind == "union" else ""
        raise AvroSchemaError(f"it is a {writer}, and no record{rule}")
    if writer.kind == "union":
        return nested.RecordUnion("the value", [_top_branch(branch, wanted) for branch in writer.branches], wanted.type)
    return _record(writer, wanted, "")


def _top_branch(branch: AvroType, wanted: Wanted) -> AvroNode:
    if branch.kind == "record":
        return _record(branch, wanted, "")
    return nodes.Mismatched("", nodes.Null(""), "it is null, and no record")


def value_reader(writer: AvroType, field: WantedField) -> AvroNode:
    """The node that reads a writer's values, which are no records, as one field."""
    return reading(writer, field.wanted, field.names[0])


def reading(writer: AvroType, wanted: Wanted, path: str) -> AvroNode:
    """The node that reads one type."""
    if writer.kind == "union":
        return nested.Union(path, [reading(each, wanted, path) for each in writer.branches], wanted.type)
    if writer.kind == "null":
        no_null = f"{path}: it is null, which the reader does not allow"
        return nodes.Null(path) if wanted.is_nullable else nodes.Mismatched(path, nodes.Null(path), no_null)
    found = _nested(writer, wanted, path) or _plain(writer, wanted, path)
    if found is not None:
        return found
    why = f"{path}: it is a {writer} in the record's schema, which can't be read as {spark_type(wanted.type)}"
    return nodes.Mismatched(path, skipping(writer, path), why)


def _nested(writer: AvroType, wanted: Wanted, path: str) -> AvroNode | None:
    type_ = wanted.type
    if writer.kind == "record" and pa.types.is_struct(type_):
        return _record(writer, wanted, path)
    if writer.of is None or wanted.of is None:
        return None
    if writer.kind == "array" and pa.types.is_list(type_):
        return nested.Repeated(path, [reading(writer.of, wanted.of, f"{path}[]")], type_)
    if writer.kind == "map" and pa.types.is_map(type_) and type_.key_type == pa.string():
        key = nodes.Text(path, is_string=True)
        return nested.Repeated(path, [key, reading(writer.of, wanted.of, f"{path}[]")], type_)
    return None


def _record(writer: AvroType, wanted: Wanted, path: str) -> nested.Record:
    places = _places(writer, wanted)
    members = list[nested.Member]()
    for each in writer.fields:
        at, below = places.get(each.name), f"{path}.{each.name}" if path else each.name
        node = skipping(each.type, below) if at is None else reading(each.type, wanted.fields[at].wanted, below)
        members.append(nested.Member(node, at))
    lacking = {place: wanted.fields[place] for place in range(len(wanted.fields)) if place not in places.values()}
    constants = {place: field.default for place, field in lacking.items() if field.default is not None}
    made = nested.Record(path, members, wanted.type, constants)
    if len(constants) == len(lacking):
        return made
    name = next(field.names[0] for place, field in lacking.items() if place not in constants)
    why = f"{path and path + ': '}the record's schema has no field {name!r}, and the reader no default for it"
    return nested.Unreadable(path, members, wanted.type, why)


def _places(writer: AvroType, wanted: Wanted) -> dict[str, int]:
    """By the writer's fields that are read, their places among the reader's. A field of the same name comes before one
    that has it as an alias."""
    written = {each.name for each in writer.fields}
    places = {field.names[0]: place for place, field in enumerate(wanted.fields) if field.names[0] in written}
    for place, field in enumerate(wanted.fields):
        if field.names[0] not in places:
            name = next((each for each in field.names[1:] if each in written - places.keys()), None)
            if name is not None:
                places[name] = place
    return places


def _plain(writer: AvroType, wanted: Wanted, path: str) -> AvroNode | None:
    type_, kind = wanted.type, writer.kind
    if pa.types.is_string(type_):
        return _text(writer, wanted, path)
    if pa.types.is_binary(type_):
        return _bytes(writer, path)
    if pa.types.is_decimal(type_):
        return _decimal(writer, type_, path)
    if pa.types.is_boolean(type_):
        return nodes.Boolean(path) if kind == "boolean" else None
    if pa.types.is_date(type_):
        is_date = writer.logical == "date"
        return _converted(_number(writer, path), lambda read: read.view(type_), type_) if is_date else None
    if pa.types.is_timestamp(type_):
        return _timestamp(writer, type_, path)
    if kind in _FLOATS.get(type_, ()):
        return _converted(_number(writer, path), lambda read: pc.cast(read, type_, safe=False), type_)
    if kind in _INTEGERS.get(type_, ()):
        return _converted(_number(writer, path), lambda read: read.cast(type_), type_)
    return None


def _number(writer: AvroType, path: str) -> AvroNode:
    sizes = {"float": 4, "double": 8}
    if writer.kind in sizes:
        return nodes.Float(path, sizes[writer.kind])
    return nodes.Number(path, is_int=writer.kind == "int")


def _converted(node: AvroNode, convert: Callable[[pa.Array], pa.Array], wanted: pa.DataType) -> AvroNode:
    return nodes.Converted(node, convert, wanted)


def _timestamp(writer: AvroType, wanted: pa.DataType, path: str) -> AvroNode | None:
    unit = {"timestamp-millis": "ms", "timestamp-micros": "us"}.get(writer.logical.removeprefix("local-"))
    if unit is None:
        return None
    if writer.logical.startswith("local-"):
        return _converted(
            _number(writer, path), lambda read: _instants(read.view(pa.timestamp(unit))).cast(wanted), wanted
        )
    return _converted(_number(writer, path), lambda read: read.view(pa.timestamp(unit, tz="UTC")).cast(wanted), wanted)


def _instants(local: pa.Array) -> pa.Array:
    """Local times as instants: in the zone that the topology names for times without one, otherwise in UTC."""
    zone = zone_of_naive_times()
    return local.cast(pa.timestamp(local.type.unit, tz="UTC")) if zone is None else column_with_zone(local, zone)


def _text(writer: AvroType, wanted: Wanted, path: str) -> AvroNode | None:
    if writer.kind == "enum":
        known = wanted.symbols
        symbols = [each if known is None or each in known else wanted.symbol for each in writer.symbols]
        return nodes.Enum(path, symbols, writer.symbols)
    if wanted.symbols is not None:
        return None
    if writer.logical == "uuid" and writer.kind == "fixed":
        return nodes.Uuid(path) if writer.size == nodes.UUID_BYTES else None
    is_text = writer.kind == "string" or (writer.kind == "bytes" and not writer.logical)
    return nodes.Text(path, is_string=True) if is_text else None


def _bytes(writer: AvroType, path: str) -> AvroNode | None:
    if writer.kind == "fixed":
        return nodes.Fixed(path, writer.size)
    return nodes.Text(path, is_string=False) if writer.kind in ("bytes", "string") else None


def _decimal(writer: AvroType, wanted: pa.DataType, path: str) -> AvroNode | None:
    if writer.logical != "decimal" or writer.precision > DECIMAL_DIGITS_MAX:
        return None
    written = pa.decimal128(writer.precision, writer.scale)
    node = nodes.Decimal(path, written, writer.size if writer.kind == "fixed" else None)
    return node if written == wanted else _converted(node, lambda read: read.cast(wanted), wanted)


def skipping(writer: AvroType, path: str) -> AvroNode:
    """The node that passes one type by."""
    return _Skipping().node(writer, path)


class _Skipping:
    """Knows the records that it is within."""

    def __init__(self) -> None:
        self._within = dict[int, list[nested.Recursive]]()

    def node(self, writer: AvroType, path: str) -> AvroNode:
        if writer.kind == "union":
            return nested.Union(path, [self.node(each, path) for each in writer.branches], None)
        if writer.kind == "record":
            return self._record(writer, path)
        if writer.of is not None:
            below = self.node(writer.of, f"{path}[]")
            return nested.Repeated(path, [nodes.Text(path, is_string=False)] * (writer.kind == "map") + [below], None)
        return _skipping_plain(writer, path)

    def _record(self, writer: AvroType, path: str) -> AvroNode:
        if (waiting := self._within.get(id(writer))) is not None:
            waiting.append(again := nested.Recursive(path))
            return again
        recursive = self._within[id(writer)] = []
        members = [nested.Member(self.node(each.type, f"{path}.{each.name}"), None) for each in writer.fields]
        del self._within[id(writer)]
        made = nested.Record(path, members, None, {})
        for each in recursive:
            each.node = made
        return made


def _skipping_plain(writer: AvroType, path: str) -> AvroNode:
    sizes = {"boolean": 1, "float": 4, "double": 8, "fixed": writer.size}
    if writer.kind == "null":
        return nodes.Null(path)
    if writer.kind in sizes:
        return nodes.Fixed(path, sizes[writer.kind])
    if writer.kind in ("bytes", "string"):
        return nodes.Text(path, is_string=False)
    return nodes.Number(path, is_int=False)


def unread(writer: AvroType, wanted: Wanted) -> Iterator[str]:
    """The fields of a writer's records that nobody reads."""
    for record in writer.beside_null:
        places = _places(record, wanted)
        yield from (each.name for each in record.fields if each.name not in places)
