"""Matches the rows of two Arrow tables by key: merges, changes and look-ups find their rows with it.

`find_key_positions` returns for each row of one table the position of the row with its key in another. Keys are equal
if all of their columns are: NULL equals NULL, NaN equals NaN, and -0.0 equals 0.0, as where Spark groups. The code must
rely only on what Arrow promises: its groups come in any order, and its joins match no NULL.

The functions choose an algorithm by the number of rows, because a hash table of many keys is larger than a processor's
caches, and each key costs an access to memory. Sorting whole numbers costs about as much, and next to nothing if parts
are already sorted, as tasks send them. In tables sorted by key, equal keys lie side by side, so the key of the next row
is near that of the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.arrow.conversions import without_negative_zero

ROWS_MIN: Final = 50_000
"""The minimum number of rows to sort by key. The hash tables of fewer rows are small."""
BLOCK_ROWS: Final = 16_384
"""The number of keys whose hash table fits into a processor's cache."""
FEWER_KEYS_FACTOR: Final = 4
"""If the keys to match are fewer by this factor, they are looked up directly. Otherwise they are numbered first, which
takes a second hash table, but a smaller one."""
SEARCH_FACTOR: Final = 8
"""If the sorted keys of the table are fewer by this factor, each of them is searched for in the keys to match."""
INDEX_SLOTS_PER_ROW: Final = 4
"""The number of slots per row up to which a table indexed by the numbers of keys replaces a hash table."""
NUMBERS_MAX: Final = 2**62
"""The maximum number of combinations of values that an integer can number."""


def find_key_positions(rows: pa.Table, table: pa.Table, key: Sequence[str], *, is_unique: bool = False) -> pa.Array:
    """Return for each row of `rows` the position of the first row of `table` with its key, NULL if there is none.

    Without key columns all keys are equal. `is_unique` promises that no two of `rows` have the same key, which makes it
    faster. Raises `ArrowException` for types that can't be compared.
    """
    if not key or not rows.num_rows or not table.num_rows:
        no_positions = pa.nulls(rows.num_rows, pa.int64())
        return no_positions if key or not table.num_rows else no_positions.fill_null(0)
    if (
        has_unique_sorted_keys(rows, key)
        and has_unique_sorted_keys(table, key)
        and _key_types(rows, key) == _key_types(table, key)
    ):
        return _match_sorted(rows[key[0]].combine_chunks(), table[key[0]].combine_chunks())
    columns = [_unify_types(rows[name], table[name]) for name in key]
    if len(columns) == 1:
        return _match_by_hash(*columns[0], is_unique=is_unique)
    return _match_numbers(*_number_keys(columns), is_unique=is_unique)


def find_unmatched_positions(matched: pa.Array, count: int) -> pa.Array:
    """Return the positions below `count` that are not in `matched`, in which NULL stands for no position."""
    if not count or matched.null_count == len(matched):
        return pa.arange(0, count)
    return pc.indices_nonzero(pc.is_null(pc.inverse_permutation(matched, max_index=count - 1))).cast(pa.int64())


def take_rows(table: pa.Table, positions: pa.Array) -> pa.Table:
    """Return the rows of a table at these positions, with NULL in every column where the position is NULL."""
    if not table.num_rows:
        # Arrow's `take` refuses a column without chunks, even if all positions are NULL.
        return pa.table([pa.nulls(len(positions), field.type) for field in table.schema], schema=table.schema)
    return table.take(positions)


def _key_types(table: pa.Table, key: Sequence[str]) -> list[pa.DataType]:
    return [table.schema.field(name).type for name in key]


def _match_sorted(keys: pa.Array, table_keys: pa.Array) -> pa.Array:
    """Return the positions of `keys` in `table_keys`; both are sorted and without duplicates, NULL last."""
    positions = _match_in_window(_without_null(keys), _without_null(table_keys))
    if not keys.null_count:
        return positions
    null_position = len(table_keys) - 1 if table_keys.null_count else None
    return pa.concat_arrays([positions, pa.array([null_position], pa.int64())])


def _match_in_window(keys: pa.Array, table_keys: pa.Array) -> pa.Array:
    """Match sorted keys in the part of `table_keys` between the positions of the first and the last key."""
    if not len(keys):
        return pa.array([], pa.int64())
    window_start, window_end = pc.search_sorted(
        table_keys, keys.take(pa.array([0, len(keys) - 1], pa.int64()))
    ).to_pylist()
    window = table_keys.slice(window_start, window_end + 1 - window_start)
    positions = _match_few(keys, window) if len(window) * SEARCH_FACTOR <= len(keys) else _match_by_blocks(keys, window)
    # Arrow tries to import modules for a number of Python's.
    return pc.add(positions, pa.scalar(window_start, pa.int64()))


def _without_null(column: pa.Array) -> pa.Array:
    return column.slice(0, len(column) - column.null_count)


def _match_few(keys: pa.Array, table_keys: pa.Array) -> pa.Array:
    """Search for each of the few `table_keys` in the many `keys`."""
    insertion_points = pc.search_sorted(keys, table_keys)
    is_inside = pc.less(insertion_points, pa.scalar(len(keys), insertion_points.type))
    insertion_points, table_keys = insertion_points.filter(is_inside), table_keys.filter(is_inside)
    is_equal = pc.equal(keys.take(insertion_points), table_keys)
    positions = insertion_points.filter(is_equal).cast(pa.int64())
    return (
        pc.indices_nonzero(is_equal).cast(pa.int64()).take(pc.inverse_permutation(positions, max_index=len(keys) - 1))
    )


def _match_by_blocks(keys: pa.Array, table_keys: pa.Array) -> pa.Array:
    """Match sorted keys block by block. A block lies in a short part of `table_keys`, unless its keys leave a gap."""
    starts = list(range(0, len(keys), BLOCK_ROWS))
    lasts = [min(start + BLOCK_ROWS, len(keys)) - 1 for start in starts]
    ends = keys.take(pa.array([*starts, *lasts], pa.int64()))
    bounds = pc.search_sorted(table_keys, ends).to_pylist()
    parts = [pa.array([], pa.int64())]
    for start, begin, end in zip(starts, bounds, bounds[len(starts) :], strict=False):
        block, window = keys.slice(start, BLOCK_ROWS), table_keys.slice(begin, end + 1 - begin)
        has_gap = len(window) > SEARCH_FACTOR * BLOCK_ROWS
        positions = _match_by_bisection(block, window) if has_gap else pc.index_in(block, value_set=window)
        parts.append(pc.add(positions.cast(pa.int64()), pa.scalar(begin, pa.int64())))
    return pa.concat_arrays(parts)


def _match_by_bisection(keys: pa.Array, table_keys: pa.Array) -> pa.Array:
    """Search for each key in sorted `table_keys`: a hash table of all keys in a gap would be larger than a cache."""
    insertion_points = pc.search_sorted(table_keys, keys).cast(pa.int64())
    is_inside = pc.less(insertion_points, pa.scalar(len(table_keys), pa.int64()))
    insertion_points = pc.if_else(is_inside, insertion_points, pa.scalar(0, pa.int64()))
    is_equal = pc.and_(is_inside, pc.equal(table_keys.take(insertion_points), keys))
    return pc.if_else(is_equal, insertion_points, pa.scalar(None, pa.int64()))


def _match_by_hash(keys: pa.ChunkedArray, table_keys: pa.ChunkedArray, *, is_unique: bool) -> pa.Array:
    """Match keys in any order by a hash table, of the smaller side if possible: building it takes most of the time."""
    if is_unique and len(keys) < len(table_keys):
        return _first_positions(_as_one_array(pc.index_in(table_keys, value_set=keys)), len(keys))
    if len(keys) * FEWER_KEYS_FACTOR > len(table_keys):
        return _as_one_array(pc.index_in(keys, value_set=table_keys))
    numbers, values = _encode(keys)
    return _first_positions(_as_one_array(pc.index_in(table_keys, value_set=values)), len(values)).take(numbers)


def _match_numbers(keys: pa.Array, table_keys: pa.Array, count: int, *, is_unique: bool) -> pa.Array:
    """Match keys that are numbers below `count`: by a table indexed by them if they are dense, else by a hash table."""
    if count <= INDEX_SLOTS_PER_ROW * (len(keys) + len(table_keys)):
        return _first_positions(table_keys, count).take(keys)
    return _match_by_hash(pa.chunked_array([keys]), pa.chunked_array([table_keys]), is_unique=is_unique)


def _first_positions(numbers: pa.Array, count: int) -> pa.Array:
    """Return for each number below `count` its first position in `numbers`, NULL if it has none."""
    positions = pc.inverse_permutation(numbers, max_index=count - 1)
    if len(numbers) - numbers.null_count == count - positions.null_count:
        return positions
    # A number occurs twice, and Arrow returns its last position: reverse the order.
    last_position = len(numbers) - 1
    backwards = numbers.take(pa.arange(last_position, -1, -1))
    return pc.subtract(pa.scalar(last_position, pa.int64()), pc.inverse_permutation(backwards, max_index=count - 1))


def _number_keys(columns: Sequence[tuple[pa.ChunkedArray, ...]]) -> tuple[pa.Array, pa.Array, int]:
    """Return a number for each key of both tables, equal for equal keys, and a bound above all numbers.

    NULL stands for a key without an equal one in the other table. The side with fewer rows is numbered, so that no hash
    table has more keys than that side.
    """
    is_fewer = len(columns[0][0]) < len(columns[0][1])
    numbers, other_numbers, count = _number_values(columns[0], is_fewer=is_fewer)
    for column in columns[1:]:
        column_numbers, other_column_numbers, size = _number_values(column, is_fewer=is_fewer)
        if count * size > NUMBERS_MAX:
            numbers, values = _encode(pa.chunked_array([numbers]))
            other_numbers, count = _as_one_array(pc.index_in(other_numbers, value_set=values)), len(values)
        factor = pa.scalar(size, pa.int64())
        numbers, other_numbers = (
            pc.add(pc.multiply(numbers, factor), column_numbers),
            pc.add(pc.multiply(other_numbers, factor), other_column_numbers),
        )
        count *= size
    return (numbers, other_numbers, count) if is_fewer else (other_numbers, numbers, count)


def _number_values(column: tuple[pa.ChunkedArray, ...], *, is_fewer: bool) -> tuple[pa.Array, pa.Array, int]:
    """Return the numbers of one column's values, for the side with fewer rows and for the other, and their count."""
    fewer, other_values = column if is_fewer else column[::-1]
    numbers, values = _encode(fewer)
    return numbers, _as_one_array(pc.index_in(other_values, value_set=values)), len(values)


def _encode(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Return for each row the number of its value, and the distinct values, NULL among them, by number."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return _as_one_array(encoded.indices), encoded.dictionary


def _as_one_array(positions: pa.Array | pa.ChunkedArray) -> pa.Array:
    return (positions.combine_chunks() if isinstance(positions, pa.ChunkedArray) else positions).cast(pa.int64())


def _unify_types(*columns: pa.ChunkedArray) -> tuple[pa.ChunkedArray, ...]:
    """Return the columns in one common type, and floating-point numbers in their comparable form."""
    decoded = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column for column in columns
    ]
    if len({column.type for column in decoded}) > 1:
        schemas = [pa.schema([("key", column.type)]) for column in decoded]
        common = pa.unify_schemas(schemas, promote_options="permissive").field("key").type
        decoded = [column.cast(common) for column in decoded]
    return tuple(make_comparable(column) for column in decoded)


def make_comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column with one NaN and one zero, so that floating-point numbers that are equal have equal bits."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), without_negative_zero(column))


def make_comparable_key(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a key without a negative zero, so that equal keys have the same text."""
    return tuple(value + 0.0 if isinstance(value, float) else value for value in values)


# --- rows in the order of their key ---------------------------------------------------------------------------------


def is_quick_to_sort(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True for many rows whose key is sorted quickly: one column of whole numbers, or of times."""
    if len(key) != 1 or table.num_rows < ROWS_MIN:
        return False
    type_ = table.schema.field(key[0]).type
    return bool(pa.types.is_integer(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def sort_by_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows sorted by key, NULL last, equal keys in their old order; as they are unless sorting is quick."""
    if not is_quick_to_sort(table, key) or is_strictly_ascending(table[key[0]]):
        return table
    return table.combine_chunks().take(compute_sort_order(table[key[0]]))


def compute_sort_order(column: pa.ChunkedArray) -> pa.Array:
    """Return the positions of the rows in ascending order of their key."""
    return pc.sort_indices(column.combine_chunks())


def is_strictly_ascending(column: pa.ChunkedArray) -> bool:
    """Return True if every value is larger than the previous one, and NULL is the last: then no value occurs twice."""
    non_null_count = len(column) - column.null_count
    if column.null_count > 1 or (column.null_count and column[non_null_count].is_valid):
        return False
    values = column.combine_chunks()
    is_larger = pc.less(values.slice(0, max(0, non_null_count - 1)), values.slice(1, max(0, non_null_count - 1)))
    return bool(pc.all(is_larger, min_count=0).as_py())


def has_unique_sorted_keys(table: pa.Table, key: Sequence[str]) -> bool:
    """Return True if the rows are known to be sorted by key without duplicates; False if that was not checked."""
    return is_quick_to_sort(table, key) and is_strictly_ascending(table[key[0]])
