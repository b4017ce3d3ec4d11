"""Where the rows of a table and the rows that come stand in each other, by their keys. NULL is a key like any other."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from transactional.aggregates.ordered import have_keys_once

BLOCK_ROWS = 16_384
"""So many keys have a hash table that fits into a processor's cache."""
Places = tuple[pa.Array | None, pa.Array]
"""Of each row that is to be: where it stands in the table (None: they are the table's, in order), and in what comes."""


def places_in(rows: pa.Table, source: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """For each row where its key stands in `source`, NULL: nowhere. Raises `ArrowException` for types that are not
    compared."""
    if len(key) == 1:
        wanted, given = rows[key[0]], source[key[0]].combine_chunks()
        if have_keys_once(rows, key) and have_keys_once(source, key):
            return _places_by_blocks(wanted.combine_chunks(), given)
        # Several times quicker than grouping both; what takes time is the hash table, which is of the fewer ones.
        if 0 < len(wanted) < len(given):
            in_rows = _whole(pc.index_in(given, value_set=wanted.combine_chunks()))
            return _whole(pc.inverse_permutation(in_rows, max_index=len(wanted) - 1))
        return _whole(pc.index_in(wanted, value_set=given))
    in_rows, in_source = places_of(rows, source, key)
    # Groups come in any order: where a hash collides, not in that of the rows.
    comes = pc.is_valid(in_rows)
    order = pc.inverse_permutation(in_rows.filter(comes), max_index=rows.num_rows - 1)
    return in_source.filter(comes).take(order)


def _places_by_blocks(wanted: pa.Array, given: pa.Array) -> pa.Array:
    """Both are in order: what is looked for in a block is near the block before. NULL is last."""
    starts = range(0, len(wanted), BLOCK_ROWS)
    known = given.slice(0, len(given) - given.null_count)
    firsts = wanted.take(pa.array(starts[1:], pa.int64()))
    bounds = [0, *pc.fill_null(pc.search_sorted(known, firsts), len(known)).to_pylist(), len(given)]
    found = [pa.array([], pa.int64())]
    for start, begin, end in zip(starts, bounds, bounds[1:], strict=False):
        places = pc.index_in(wanted.slice(start, BLOCK_ROWS), value_set=given.slice(begin, end - begin))
        found.append(pc.add(places.cast(pa.int64()), begin))
    return pa.concat_arrays(found)


def _whole(places: pa.Array | pa.ChunkedArray) -> pa.Array:
    return (places.combine_chunks() if isinstance(places, pa.ChunkedArray) else places).cast(pa.int64())


def left_over(source: pa.Table, met: pa.Array) -> pa.Table:
    """The rows of `source` that stand at none of these places, each of which is named once at most."""
    if len(met) == source.num_rows:
        return source.slice(0, 0)
    if not len(met):
        return source
    return source.filter(pc.is_null(pc.inverse_permutation(met, max_index=source.num_rows - 1)))


def places_of(rows: pa.Table, source: pa.Table, key: tuple[str, ...]) -> tuple[pa.Array, pa.Array]:
    """For every key of the two where it stands in each, NULL: nowhere. NULL is a key like any other."""
    both = pa.concat_tables([_numbered(rows, key, "rows"), _numbered(source, key, "source")], promote_options="default")
    names = [f"{len(key)}", f"{len(key) + 1}"]
    grouped = both.group_by([str(number) for number in range(len(key))], use_threads=False).aggregate(
        [(name, "max") for name in names]
    )
    in_rows, in_source = (grouped[f"{name}_max"].combine_chunks() for name in names)
    return in_rows, in_source


def _numbered(table: pa.Table, key: tuple[str, ...], what: str) -> pa.Table:
    """The key columns, and a column with the rows' numbers; the other table's is empty. Names can't collide."""
    numbers = pa.arange(0, table.num_rows)
    nothing = pa.nulls(table.num_rows, pa.int64())
    last = [numbers, nothing] if what == "rows" else [nothing, numbers]
    arrays = [*(table[name] for name in key), *last]
    return pa.Table.from_arrays(arrays, names=[str(number) for number in range(len(arrays))])
