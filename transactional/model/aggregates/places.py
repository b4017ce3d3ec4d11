"""Where each key of one table stands in another: what merges, changes and look-ups find their rows by.

Keys are equal if all of their columns are: NULL equals NULL and NaN NaN, and -0.0 equals 0.0, as where Spark groups. Of
Arrow only that is relied on which it promises: its groups come in any order, and its joins find no NULL.

Hash tables of many keys are larger than a processor's caches, and each key costs a way to memory. To sort whole numbers
costs about as much, and next to nothing where parts are in order already, as those that tasks send are. In the order of
their key equal keys lie side by side, and what is looked for is near what was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.arrow.conversions import with_one_zero

ROWS_MIN: Final = 50_000
"""Fewer rows stay as they come: their hash tables are small."""
BLOCK_ROWS: Final = 16_384
"""So many keys have a hash table that fits into a processor's cache."""
MUCH_FEWER: Final = 4
"""With so many times fewer keys that are looked for a hash table is made of these, though that takes another one."""
SEARCHED: Final = 8
"""So many times fewer keys, in order, are looked for one by one in those that look for them."""
ROOM: Final = 4
"""For each row so many numbers of keys are worth a table that is indexed by them."""
NUMBERS_MAX: Final = 2**62
"""So many numbers fit an integer."""


def places_in(wanted: pa.Table, given: pa.Table, key: Sequence[str], *, once: bool = False) -> pa.Array:
    """For each row of `wanted` where the first row of `given` with its key stands, NULL: there is none.

    Without key columns all keys are equal. `once` says that no key is there twice in `wanted`, which is quicker then.
    Raises `ArrowException` for types that are not compared.
    """
    if not key or not wanted.num_rows or not given.num_rows:
        nowhere = pa.nulls(wanted.num_rows, pa.int64())
        return nowhere if key or not given.num_rows else nowhere.fill_null(0)
    if have_keys_once(wanted, key) and have_keys_once(given, key) and _types(wanted, key) == _types(given, key):
        return _by_order(wanted[key[0]].combine_chunks(), given[key[0]].combine_chunks())
    columns = [_alike(wanted[name], given[name]) for name in key]
    if len(columns) == 1:
        return _by_hash(*columns[0], once=once)
    return _by_numbers(*_numbered(columns), once=once)


def missing_places(places: pa.Array, many: int) -> pa.Array:
    """Return the places from 0 up to `many` that are not among `places`, in their order. NULL is no place."""
    if not many or places.null_count == len(places):
        return pa.arange(0, many)
    return pc.indices_nonzero(pc.is_null(pc.inverse_permutation(places, max_index=many - 1))).cast(pa.int64())


def rows_at(table: pa.Table, places: pa.Array) -> pa.Table:
    """The rows of a table at these places, NULL in every column where there is none."""
    if not table.num_rows:
        # Of a column without chunks Arrow takes nothing, not even NULLs.
        return pa.table([pa.nulls(len(places), each.type) for each in table.schema], schema=table.schema)
    return table.take(places)


def _types(table: pa.Table, key: Sequence[str]) -> list[pa.DataType]:
    return [table.schema.field(name).type for name in key]


def _by_order(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """Both are in order, NULL last."""
    places = _near(_without_null(wanted), _without_null(given))
    if not wanted.null_count:
        return places
    of_null = len(given) - 1 if given.null_count else None
    return pa.concat_arrays([places, pa.array([of_null], pa.int64())])


def _near(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """What is looked for lies between the places of the first and of the last one."""
    if not len(wanted):
        return pa.array([], pa.int64())
    first, last = pc.search_sorted(given, wanted.take(pa.array([0, len(wanted) - 1], pa.int64()))).to_pylist()
    near = given.slice(first, last + 1 - first)
    places = _by_search(wanted, near) if len(near) * SEARCHED <= len(wanted) else _by_blocks(wanted, near)
    # Arrow tries to import modules for a number of Python's.
    return pc.add(places, pa.scalar(first, pa.int64()))


def _without_null(column: pa.Array) -> pa.Array:
    return column.slice(0, len(column) - column.null_count)


def _by_search(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """Look for the few in the many."""
    at = pc.search_sorted(wanted, given)
    is_inside = pc.less(at, pa.scalar(len(wanted), at.type))
    at, given = at.filter(is_inside), given.filter(is_inside)
    is_match = pc.equal(wanted.take(at), given)
    where = at.filter(is_match).cast(pa.int64())
    return pc.indices_nonzero(is_match).cast(pa.int64()).take(pc.inverse_permutation(where, max_index=len(wanted) - 1))


def _by_blocks(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """What is looked for in a block is near the block before, unless its keys leave a gap."""
    starts = list(range(0, len(wanted), BLOCK_ROWS))
    lasts = [min(start + BLOCK_ROWS, len(wanted)) - 1 for start in starts]
    ends = wanted.take(pa.array([*starts, *lasts], pa.int64()))
    bounds = pc.search_sorted(given, ends).to_pylist()
    found = [pa.array([], pa.int64())]
    for start, begin, end in zip(starts, bounds, bounds[len(starts) :], strict=False):
        block, near = wanted.slice(start, BLOCK_ROWS), given.slice(begin, end + 1 - begin)
        has_gap = len(near) > SEARCHED * BLOCK_ROWS
        places = _by_bisection(block, near) if has_gap else pc.index_in(block, value_set=near)
        found.append(pc.add(places.cast(pa.int64()), pa.scalar(begin, pa.int64())))
    return pa.concat_arrays(found)


def _by_bisection(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """Look for the many in what is in order: a hash table of all that lies in a gap would be larger than a cache."""
    at = pc.search_sorted(given, wanted).cast(pa.int64())
    is_inside = pc.less(at, pa.scalar(len(given), pa.int64()))
    at = pc.if_else(is_inside, at, pa.scalar(0, pa.int64()))
    is_match = pc.and_(is_inside, pc.equal(given.take(at), wanted))
    return pc.if_else(is_match, at, pa.scalar(None, pa.int64()))


def _by_hash(wanted: pa.ChunkedArray, given: pa.ChunkedArray, *, once: bool) -> pa.Array:
    """What takes time is the hash table."""
    if once and len(wanted) < len(given):
        return _firsts(_whole(pc.index_in(given, value_set=wanted)), len(wanted))
    if len(wanted) * MUCH_FEWER > len(given):
        return _whole(pc.index_in(wanted, value_set=given))
    numbers, values = _encoded(wanted)
    return _firsts(_whole(pc.index_in(given, value_set=values)), len(values)).take(numbers)


def _by_numbers(wanted: pa.Array, given: pa.Array, many: int, *, once: bool) -> pa.Array:
    """The same, of numbers below `many`."""
    if many <= ROOM * (len(wanted) + len(given)):
        return _firsts(given, many).take(wanted)
    return _by_hash(pa.chunked_array([wanted]), pa.chunked_array([given]), once=once)


def _firsts(numbers: pa.Array, many: int) -> pa.Array:
    """For each number below `many` where it stands first, NULL: nowhere."""
    found = pc.inverse_permutation(numbers, max_index=many - 1)
    if len(numbers) - numbers.null_count == many - found.null_count:
        return found
    # Of several places the last one is taken.
    last = len(numbers) - 1
    backwards = numbers.take(pa.arange(last, -1, -1))
    return pc.subtract(pa.scalar(last, pa.int64()), pc.inverse_permutation(backwards, max_index=many - 1))


def _numbered(columns: Sequence[tuple[pa.ChunkedArray, ...]]) -> tuple[pa.Array, pa.Array, int]:
    """A number in place of the columns of a key, equal for equal keys, and below what all numbers are; NULL: no key of
    the other table is equal. The side with fewer rows is numbered, so that no hash table has more keys."""
    is_fewer = len(columns[0][0]) < len(columns[0][1])
    numbers, others, many = _numbers_of(columns[0], is_fewer=is_fewer)
    for each in columns[1:]:
        more, of_others, size = _numbers_of(each, is_fewer=is_fewer)
        if many * size > NUMBERS_MAX:
            numbers, values = _encoded(pa.chunked_array([numbers]))
            others, many = _whole(pc.index_in(others, value_set=values)), len(values)
        factor = pa.scalar(size, pa.int64())
        numbers, others = pc.add(pc.multiply(numbers, factor), more), pc.add(pc.multiply(others, factor), of_others)
        many *= size
    return (numbers, others, many) if is_fewer else (others, numbers, many)


def _numbers_of(column: tuple[pa.ChunkedArray, ...], *, is_fewer: bool) -> tuple[pa.Array, pa.Array, int]:
    """The numbers of one column: of the side with fewer rows, of the other one, and how many there are."""
    few, others = column if is_fewer else column[::-1]
    numbers, values = _encoded(few)
    return numbers, _whole(pc.index_in(others, value_set=values)), len(values)


def _encoded(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """For each row the number of its value, NULL's as well, and the values by their numbers."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return _whole(encoded.indices), encoded.dictionary


def _whole(places: pa.Array | pa.ChunkedArray) -> pa.Array:
    return (places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places).cast(pa.int64())


def _alike(*columns: pa.ChunkedArray) -> tuple[pa.ChunkedArray, ...]:
    """Columns of one type, in which values are equal only if they are the same."""
    plain = [each.cast(each.type.value_type) if pa.types.is_dictionary(each.type) else each for each in columns]
    if len({each.type for each in plain}) > 1:
        schemas = [pa.schema([("key", each.type)]) for each in plain]
        common = pa.unify_schemas(schemas, promote_options="permissive").field("key").type
        plain = [each.cast(common) for each in plain]
    return tuple(comparable(each) for each in plain)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values; of floating-point numbers those that are equal have the same bits."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), with_one_zero(column))


def comparable_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """The same of one key: no two that are equal have different texts."""
    return tuple(value + 0.0 if isinstance(value, float) else value for value in values)


# --- rows in the order of their key ---------------------------------------------------------------------------------


def is_sortable(table: pa.Table, key: Sequence[str]) -> bool:
    """Whether these are many rows whose key is sorted quickly: one column of whole numbers, or of times."""
    if len(key) != 1 or table.num_rows < ROWS_MIN:
        return False
    type_ = table.schema.field(key[0]).type
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def in_order(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows by key, NULL last; rows of the same key stay in their order. Where it is not worth it as they are."""
    if not is_sortable(table, key) or is_ascending(table[key[0]]):
        return table
    return table.combine_chunks().take(order_of(table[key[0]]))


def order_of(column: pa.ChunkedArray) -> pa.Array:
    """Where the rows by key stand now."""
    return pc.sort_indices(column.combine_chunks())


def is_ascending(column: pa.ChunkedArray) -> bool:
    """Whether every value is larger than the one before it, NULL as the last one: then none is there twice."""
    known = len(column) - column.null_count
    if column.null_count > 1 or (column.null_count and column[known].is_valid):
        return False
    whole = column.combine_chunks()
    is_larger = pc.less(whole.slice(0, max(0, known - 1)), whole.slice(1, max(0, known - 1)))
    return bool(pc.all(is_larger, min_count=0).as_py())


def have_keys_once(table: pa.Table, key: Sequence[str]) -> bool:
    """Whether these are many rows in the order of their key, and none is there twice. False: it is not known."""
    return is_sortable(table, key) and is_ascending(table[key[0]])
