"""Resolves a writer's schema to a reader's types as Avro's specification says: field by field, by names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spouts.avro import nested, nodes
from spouts.avro.nodes import AvroNode
from spouts.avro.reader_types import ReaderField, ReaderType
from spouts.avro.schema import AvroSchemaError, AvroType
from transactional.model.arrow import spark_type
from transactional.model.arrow.zones import column_with_zone, zone_of_naive_times
from transactional.model.schema import DECIMAL_DIGITS_MAX

_INTEGERS = {pa.int8(): ("int",), pa.int16(): ("int",), pa.int32(): ("int",), pa.int64(): ("int", "long")}
_FLOATS = {pa.float32(): ("int", "long", "float"), pa.float64(): ("int", "long", "float", "double")}


def has_records(writer: AvroType) -> bool:
    """Whether a writer's values are records: of one type, or of field in a union with no other type than null."""
    return bool(writer.branches_without_null) and all(
        branch.kind == "record" for branch in writer.branches_without_null
    )


def record_reader(writer: AvroType, reader_type: ReaderType) -> nested.Record | nested.RecordUnion:
    """Return the node that reads a writer's records. Raises `AvroSchemaError` if it has others too."""
    if not has_records(writer):
        rule = ": all types of a union have to be records, or null" if writer.kind == "union" else ""
        raise AvroSchemaError(f"it is a {writer}, and no record{rule}")
    if writer.kind == "union":
        return nested.RecordUnion(
            "the value", [_top_branch(branch, reader_type) for branch in writer.branches], reader_type.arrow_type
        )
    return _record(writer, reader_type, "")


def _top_branch(branch: AvroType, reader_type: ReaderType) -> AvroNode:
    if branch.kind == "record":
        return _record(branch, reader_type, "")
    return nodes.Mismatched("", nodes.Null(""), "it is null, and no record")


def value_reader(writer: AvroType, field: ReaderField) -> AvroNode:
    """Return the node that reads a writer's values, which are no records, as one field."""
    return make_reading_node(writer, field.type, field.names[0])


def make_reading_node(writer: AvroType, reader_type: ReaderType, path: str) -> AvroNode:
    """Return the node that reads one type."""
    if writer.kind == "union":
        return nested.Union(
            path, [make_reading_node(branch, reader_type, path) for branch in writer.branches], reader_type.arrow_type
        )
    if writer.kind == "null":
        no_null = f"{path}: it is null, which the reader does not allow"
        return nodes.Null(path) if reader_type.is_nullable else nodes.Mismatched(path, nodes.Null(path), no_null)
    node = _nested(writer, reader_type, path) or _plain(writer, reader_type, path)
    if node is not None:
        return node
    reason = (
        f"{path}: it is a {writer} in the record's schema, which can't be read as {spark_type(reader_type.arrow_type)}"
    )
    return nodes.Mismatched(path, make_skipping_node(writer, path), reason)


def _nested(writer: AvroType, reader_type: ReaderType, path: str) -> AvroNode | None:
    type_ = reader_type.arrow_type
    if writer.kind == "record" and pa.types.is_struct(type_):
        return _record(writer, reader_type, path)
    if writer.item_type is None or reader_type.item_type is None:
        return None
    if writer.kind == "array" and pa.types.is_list(type_):
        return nested.Repeated(path, [make_reading_node(writer.item_type, reader_type.item_type, f"{path}[]")], type_)
    if writer.kind == "map" and pa.types.is_map(type_) and type_.key_type == pa.string():
        key = nodes.Text(path, is_string=True)
        return nested.Repeated(
            path, [key, make_reading_node(writer.item_type, reader_type.item_type, f"{path}[]")], type_
        )
    return None


def _record(writer: AvroType, reader_type: ReaderType, path: str) -> nested.Record:
    places = _places(writer, reader_type)
    members = list[nested.Member]()
    for field in writer.fields:
        place, path_below = places.get(field.name), f"{path}.{field.name}" if path else field.name
        if place is None:
            node = make_skipping_node(field.type, path_below)
        else:
            node = make_reading_node(field.type, reader_type.fields[place].type, path_below)
        members.append(nested.Member(node, place))
    lacking = {place: field for place, field in enumerate(reader_type.fields) if place not in places.values()}
    constants = {place: field.default for place, field in lacking.items() if field.default is not None}
    record = nested.Record(path, members, reader_type.arrow_type, constants)
    if len(constants) == len(lacking):
        return record
    name = next(field.names[0] for place, field in lacking.items() if place not in constants)
    reason = f"{path and path + ': '}the record's schema has no field {name!r}, and the reader no default for it"
    return nested.Unreadable(path, members, reader_type.arrow_type, reason)


def _places(writer: AvroType, reader_type: ReaderType) -> dict[str, int]:
    """Return for each field of the writer's that is read its place among the reader's fields, by its name. A field of
    the same name comes before one that has the name as an alias."""
    writer_names = {field.name for field in writer.fields}
    places = {field.names[0]: place for place, field in enumerate(reader_type.fields) if field.names[0] in writer_names}
    for place, field in enumerate(reader_type.fields):
        if field.names[0] not in places:
            name = next((alias for alias in field.names[1:] if alias in writer_names - places.keys()), None)
            if name is not None:
                places[name] = place
    return places


def _plain(writer: AvroType, reader_type: ReaderType, path: str) -> AvroNode | None:
    type_, kind = reader_type.arrow_type, writer.kind
    if pa.types.is_string(type_):
        return _text(writer, reader_type, path)
    if pa.types.is_binary(type_):
        return _bytes(writer, path)
    if pa.types.is_decimal(type_):
        return _decimal(writer, type_, path)
    if pa.types.is_boolean(type_):
        return nodes.Boolean(path) if kind == "boolean" else None
    if pa.types.is_date(type_):
        is_date = writer.logical == "date"
        return _converted(_number(writer, path), lambda values: values.view(type_), type_) if is_date else None
    if pa.types.is_timestamp(type_):
        return _timestamp(writer, type_, path)
    if kind in _FLOATS.get(type_, ()):
        return _converted(_number(writer, path), lambda values: pc.cast(values, type_, safe=False), type_)
    if kind in _INTEGERS.get(type_, ()):
        return _converted(_number(writer, path), lambda values: values.cast(type_), type_)
    return None


def _number(writer: AvroType, path: str) -> AvroNode:
    sizes = {"float": 4, "double": 8}
    if writer.kind in sizes:
        return nodes.Float(path, sizes[writer.kind])
    return nodes.Number(path, is_int=writer.kind == "int")


def _converted(node: AvroNode, convert: Callable[[pa.Array], pa.Array], target: pa.DataType) -> AvroNode:
    return nodes.Converted(node, convert, target)


def _timestamp(writer: AvroType, target: pa.DataType, path: str) -> AvroNode | None:
    unit = {"timestamp-millis": "ms", "timestamp-micros": "us"}.get(writer.logical.removeprefix("local-"))
    if unit is None:
        return None
    if writer.logical.startswith("local-"):
        return _converted(
            _number(writer, path), lambda values: _instants(values.view(pa.timestamp(unit))).cast(target), target
        )
    return _converted(
        _number(writer, path), lambda values: values.view(pa.timestamp(unit, tz="UTC")).cast(target), target
    )


def _instants(local: pa.Array) -> pa.Array:
    """Convert local times to instants: in the zone that the topology names for times without one, otherwise in UTC."""
    zone = zone_of_naive_times()
    return local.cast(pa.timestamp(local.type.unit, tz="UTC")) if zone is None else column_with_zone(local, zone)


def _text(writer: AvroType, reader_type: ReaderType, path: str) -> AvroNode | None:
    if writer.kind == "enum":
        reader_symbols = reader_type.symbols
        symbols = [
            symbol if reader_symbols is None or symbol in reader_symbols else reader_type.symbol
            for symbol in writer.symbols
        ]
        return nodes.Enum(path, symbols, writer.symbols)
    if reader_type.symbols is not None:
        return None
    if writer.logical == "uuid" and writer.kind == "fixed":
        return nodes.Uuid(path) if writer.size == nodes.UUID_BYTES else None
    is_text = writer.kind == "string" or (writer.kind == "bytes" and not writer.logical)
    return nodes.Text(path, is_string=True) if is_text else None


def _bytes(writer: AvroType, path: str) -> AvroNode | None:
    if writer.kind == "fixed":
        return nodes.Fixed(path, writer.size)
    return nodes.Text(path, is_string=False) if writer.kind in ("bytes", "string") else None


def _decimal(writer: AvroType, target: pa.DataType, path: str) -> AvroNode | None:
    if writer.logical != "decimal" or writer.precision > DECIMAL_DIGITS_MAX:
        return None
    writer_type = pa.decimal128(writer.precision, writer.scale)
    node = nodes.Decimal(path, writer_type, writer.size if writer.kind == "fixed" else None)
    return node if writer_type == target else _converted(node, lambda values: values.cast(target), target)


def make_skipping_node(writer: AvroType, path: str) -> AvroNode:
    """Return the node that skips one type."""
    return _Skipping().node(writer, path)


class _Skipping:
    """Makes nodes that skip, with placeholders for records that a recursive type refers to before they are made."""

    def __init__(self) -> None:
        self._placeholders = dict[int, list[nested.Recursive]]()

    def node(self, writer: AvroType, path: str) -> AvroNode:
        if writer.kind == "union":
            return nested.Union(path, [self.node(branch, path) for branch in writer.branches], None)
        if writer.kind == "record":
            return self._record(writer, path)
        if writer.item_type is not None:
            items = self.node(writer.item_type, f"{path}[]")
            return nested.Repeated(path, [nodes.Text(path, is_string=False)] * (writer.kind == "map") + [items], None)
        return _skipping_plain(writer, path)

    def _record(self, writer: AvroType, path: str) -> AvroNode:
        if (placeholders := self._placeholders.get(id(writer))) is not None:
            placeholders.append(placeholder := nested.Recursive(path))
            return placeholder
        placeholders = self._placeholders[id(writer)] = []
        members = [nested.Member(self.node(field.type, f"{path}.{field.name}"), None) for field in writer.fields]
        del self._placeholders[id(writer)]
        record = nested.Record(path, members, None, {})
        for placeholder in placeholders:
            placeholder.node = record
        return record


def _skipping_plain(writer: AvroType, path: str) -> AvroNode:
    sizes = {"boolean": 1, "float": 4, "double": 8, "fixed": writer.size}
    if writer.kind == "null":
        return nodes.Null(path)
    if writer.kind in sizes:
        return nodes.Fixed(path, sizes[writer.kind])
    if writer.kind in ("bytes", "string"):
        return nodes.Text(path, is_string=False)
    return nodes.Number(path, is_int=False)


def unread_fields(writer: AvroType, reader_type: ReaderType) -> Iterator[str]:
    """Yield the fields of a writer's records that nobody reads."""
    for record in writer.branches_without_null:
        places = _places(record, reader_type)
        yield from (field.name for field in record.fields if field.name not in places)
