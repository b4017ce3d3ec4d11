"""Where keys of one table stand in another: against a plain dict, for every type of key, however Arrow finds them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from transactional.model.aggregates import key_matching
from transactional.model.aggregates.key_matching import find_key_positions, find_unmatched_positions, take_rows

Search = Callable[[pa.Table, pa.Table, Sequence[str]], pa.Array]
Case = tuple[pa.Table, pa.Table, list[str]]
ROWS = 3_000
TIMES = pa.timestamp("us", tz="UTC")
NAN = float("nan")
DOMAINS: list[tuple[list[Any], list[pa.DataType]]] = [
    ([None, 0, 1, 2, -7], [pa.int64(), pa.int32(), pa.int8()]),
    ([None, "", "a", "ab", "b"], [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
    ([None, b"", b"a", b"ab"], [pa.binary(), pa.large_binary()]),
    ([None, 0.0, -0.0, NAN, -NAN, 1.5, -math.inf], [pa.float64(), pa.float32()]),
    ([None, True, False], [pa.bool_()]),
    ([None, Decimal("1.00"), Decimal("-0.10"), Decimal(0)], [pa.decimal128(10, 2), pa.decimal128(38, 2)]),
    ([None, date(1969, 12, 31), date(2026, 1, 1)], [pa.date32()]),
    ([None, datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)], [TIMES]),
    ([None], [pa.null(), pa.int64()]),
]
"""Few values of each type, so that many are equal, and types in which they may come."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Two tables, and the columns of their key."""
    domains = draw(st.lists(st.sampled_from(DOMAINS), min_size=0, max_size=3))
    names = [f"key {number}" for number in range(len(domains))]
    tables = []
    for what in ("wanted", "given"):
        many = draw(st.integers(0, 9), label=f"rows {what}")
        cut = draw(st.integers(0, many))
        columns = [pa.array(range(many), pa.int64())]
        for values, types in domains:
            type_, column = (
                draw(st.sampled_from(types)),
                draw(st.lists(st.sampled_from(values), min_size=many, max_size=many)),
            )
            whole = pa.array(column, type_)
            columns.append(pa.chunked_array([whole.slice(0, cut), whole.slice(cut)], type_))
        tables.append(pa.table(columns, names=["other", *names]))
    return tables[0], tables[1], names


def plain(value: Any) -> Any:
    """A value that equals another one of plain Python if their keys are equal."""
    return "not a number" if isinstance(value, float) and math.isnan(value) else value


def keys_of(table: pa.Table, key: Sequence[str]) -> list[tuple[Any, ...]]:
    return [tuple(plain(row[name]) for name in key) for row in table.select(["other", *key]).to_pylist()]


def check(search: Search, wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> None:
    first: dict[tuple[Any, ...], int] = {}
    for place, each in enumerate(keys_of(given, key)):
        first.setdefault(each, place)
    looked_for = keys_of(wanted, key)
    # A wrong one does not know of keys that are there once.
    is_once = search is find_key_positions and len(set(looked_for)) == len(looked_for)
    for found in [
        search(wanted, given, key),
        *([find_key_positions(wanted, given, key, is_unique=True)] if is_once else []),
    ]:
        assert found.type == pa.int64()
        assert found.to_pylist() == [first.get(each) for each in looked_for]


@settings(max_examples=examples(150))
@given(cases(), st.sampled_from([0, 1, 4]), st.sampled_from([0, 4]), st.sampled_from([1, 10, 2**62]))
def test_as_a_dict_finds_them(case: Case, much_fewer: int, room: int, numbers_max: int) -> None:
    """Whichever side a hash table is made of, with numbers that are close to each other and those that are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_matching, "FEWER_KEYS_FACTOR", much_fewer)
        patch.setattr(key_matching, "INDEX_SLOTS_PER_ROW", room)
        patch.setattr(key_matching, "NUMBERS_MAX", numbers_max)
        check(find_key_positions, *case)


@settings(max_examples=examples(100))
@given(
    st.lists(st.none() | st.integers(-9, 9), unique=True),
    st.lists(st.none() | st.integers(-9, 9), unique=True),
    st.integers(1, 4),
    st.sampled_from([0, 2, 99]),
    st.sampled_from([pa.int64(), TIMES]),
)
@example([1, 2, 3], [2, 9], 1, 0, pa.int64())  # the last one that is near lies beyond
@example([-9, 0, 9], [-8, -6, -4, -2, 0, 2, 4, 6], 2, 2, pa.int64())  # a block reaches over a gap
def test_in_order_as_a_dict_finds_them(
    one: list[Any], other: list[Any], block_rows: int, searched: int, type_: pa.DataType
) -> None:
    """Many keys in order are looked for block by block, few in many one by one; NULL is last."""
    tables = []
    for keys in (one, other):
        in_order = pa.array(sorted(keys, key=lambda key: 99 if key is None else key), pa.int64())
        tables.append(pa.table({"other": pa.arange(0, len(keys)), "key": in_order.cast(type_)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transactional.model.aggregates.key_matching.ROWS_MIN", 0)
        patch.setattr(key_matching, "BLOCK_ROWS", block_rows)
        patch.setattr(key_matching, "SEARCH_FACTOR", searched)
        check(find_key_positions, tables[0], tables[1], ["key"])


def many_keys(seed: int) -> Case:
    """So many that their hashes collide, NULL among them; a third of what is searched is looked for, and others."""
    random = Random(seed)
    words, minutes = [None, *(f"word-{number}" for number in range(2 * ROWS))], [None, *range(3)]
    stored = random.sample([(word, minute) for word in words for minute in minutes], ROWS)
    coming = [*random.sample(stored, ROWS // 3), ("new", 0)]
    random.shuffle(coming)
    tables = [
        pa.table(
            {
                "other": pa.arange(0, len(rows)),
                "word": pa.array([word for word, _ in rows], pa.string()),
                "minute": pa.array([minute for _, minute in rows], pa.int64()),
            }
        )
        for rows in (stored, coming)
    ]
    return tables[seed % 2], tables[1 - seed % 2], ["word", "minute"]


@pytest.mark.parametrize("seed", range(4))
def test_each_of_many_rows_has_its_own_place(seed: int) -> None:
    wanted, given, key = many_keys(seed)
    check(find_key_positions, wanted, given, key)
    check(find_key_positions, wanted, given, key[:1])


@settings(max_examples=examples(60))
@given(st.integers(0, 9).flatmap(lambda many: st.tuples(st.just(many), _places(many))))
def test_missing_places(case: tuple[int, list[int | None]]) -> None:
    many, places = case
    found = find_unmatched_positions(pa.array(places, pa.int64()), many)
    assert found.type == pa.int64()
    assert found.to_pylist() == [place for place in range(many) if place not in places]


def _places(many: int) -> st.SearchStrategy[list[int | None]]:
    return st.lists(st.none() | st.integers(0, many - 1) if many else st.none(), max_size=12)


@pytest.mark.parametrize(
    "columns", [{"a": pa.chunked_array([], pa.int64())}, {"a": pa.array([], pa.int64())}, {"a": [1, 2]}]
)
def test_the_rows_at_places(columns: Any) -> None:
    table = pa.table(columns)
    expected = [None, *([2, 1, 2] if table.num_rows else [None] * 3)]
    positions = [None, *([1, 0, 1] if table.num_rows else [None] * 3)]
    found = take_rows(table, pa.array(positions, pa.int64()))
    assert found.schema == table.schema
    assert found["a"].to_pylist() == expected


# --- wrong ones, which the tests above have to catch ------------------------------------------------------------------


def by_a_join(wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Array:
    """A join finds no NULL."""
    here = wanted.select(key).append_column("at", pa.arange(0, wanted.num_rows))
    there = given.select(key).append_column("place", pa.arange(0, given.num_rows))
    joined = here.join(there.group_by(key).aggregate([("place", "min")]), list(key), use_threads=False).sort_by("at")
    return joined["place_min"].combine_chunks()


def by_groups_in_order(wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Array:
    """Groups are not in the order of their first rows."""
    nothing = [pa.nulls(table.num_rows, pa.int64()) for table in (wanted, given)]
    here = wanted.select(key).append_column("at", pa.arange(0, wanted.num_rows)).append_column("place", nothing[0])
    there = given.select(key).append_column("at", nothing[1]).append_column("place", pa.arange(0, given.num_rows))
    grouped = (
        pa.concat_tables([here, there]).group_by(key, use_threads=False).aggregate([("at", "max"), ("place", "min")])
    )
    return grouped.filter(grouped["at_max"].is_valid())["place_min"].combine_chunks()


def by_text(wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Array:
    """Texts that are put together are equal where their parts are not."""

    def texts(table: pa.Table) -> pa.Array:
        return pa.array(
            ["".join("" if value is None else str(value) for value in each) for each in keys_of(table, key)]
        )

    return pc.index_in(texts(wanted), value_set=texts(given)).cast(pa.int64())


def of_the_last(wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Array:
    """Of equal keys the last one."""
    positions_of = {each: position for position, each in enumerate(keys_of(given, key))}
    return pa.array([positions_of.get(each) for each in keys_of(wanted, key)], pa.int64())


def for_the_first(wanted: pa.Table, given: pa.Table, key: Sequence[str]) -> pa.Array:
    """What is looked for twice is found once."""
    found, seen = list[int | None](), set[Any]()
    for place, each in zip(find_key_positions(wanted, given, key).to_pylist(), keys_of(wanted, key), strict=True):
        found.append(None if each in seen else place)
        seen.add(each)
    return pa.array(found, pa.int64())


def _is_caught(search: Search, case: Case) -> bool:
    try:
        check(search, *case)
    except (AssertionError, pa.ArrowException):
        return True
    return False


ONCE = settings(max_examples=400, database=None, derandomize=True, phases=[Phase.generate])


@pytest.mark.parametrize("wrong", [by_a_join, by_text, of_the_last, for_the_first])
def test_a_wrong_search_is_caught(wrong: Search) -> None:
    find(cases(), lambda case: _is_caught(wrong, case), settings=ONCE)


def test_a_search_that_takes_groups_for_ordered_is_caught() -> None:
    assert any(_is_caught(by_groups_in_order, many_keys(seed)) for seed in range(4))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("make_comparable", lambda column: column),
        ("_first_positions", lambda numbers, count: pc.inverse_permutation(numbers, max_index=count - 1)),
        (
            "_encode",
            lambda column: (pc.index_in(column, value_set=column.unique()).cast(pa.int64()), column.unique()[:1]),
        ),
    ],
)
def test_a_wrong_step_of_it_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(key_matching, name, wrong)
    find(cases(), lambda case: _is_caught(find_key_positions, case), settings=ONCE)
