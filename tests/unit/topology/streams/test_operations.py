"""Every operation on tuples means what it means in plain Python; on rows and in Arrow it is the same (Storm row R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.topology.streams.shapes import PAIR_ROWS, PAIRS, emitted
from transactional.bolts import TopologyContext
from transactional.errors import TransactionalError
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.streams.aggregates.aggregating import batch_aggregator_step
from transactional.trident import BatchAggregator, Stream, field

Rows = list[tuple[Any, ...]]
Make = Callable[[Stream], Stream]


class Two(NamedTuple):
    text: str
    half: float


def letters(row: Tuple) -> Iterator[str]:
    return iter(row.word or "")


def twice(row: Tuple) -> list[Two] | None:
    return None if row.n is None else [Two(str(row.n), row.n / 2)] * 2


class Prepared:
    """A function that is told where it runs."""

    def prepare(self, context: TopologyContext) -> None:
        self.offset = 100 + context.task_index

    def __call__(self, row: Tuple) -> Any:
        return self.offset + row["n"]


def doubled(batch: pa.RecordBatch) -> pa.Table:
    return pa.table({"n": pc.multiply(batch["n"], 2), "word": batch["word"]})


known: Rows = [row for row in PAIR_ROWS if row[1] is not None]
MEANINGS: dict[str, tuple[Make, Callable[[Rows], Rows]]] = {
    "map keeps the fields": (
        lambda s: s.map(lambda t: (t.n and str(t.n), t.n)),
        lambda rows: [(n and str(n), n) for _, n in rows],
    ),
    "map to the value of one field": (
        lambda s: s.map(lambda t: len(t.word or ""), "size int"),
        lambda rows: [(len(w or ""),) for w, _ in rows],
    ),
    "map to a list": (lambda s: s.map(lambda t: [t.n], "all array<long>"), lambda rows: [([n],) for _, n in rows]),
    "flat_map to values": (
        lambda s: s.flat_map(letters, "letter string"),
        lambda rows: [(c,) for w, _ in rows for c in w or ""],
    ),
    "flat_map to tuples or nothing": (
        lambda s: s.flat_map(twice),
        lambda rows: [(str(n), n / 2) for _, n in known for _ in "12"],
    ),
    "flat_map to one tuple": (
        lambda s: s.flat_map(lambda t: (t.n, 1), "n long, one int"),
        lambda rows: [(n, 1) for _, n in rows],
    ),
    "each, one value": (
        lambda s: s.each(lambda t: str(t.n), "text string"),
        lambda rows: [(w, n, str(n)) for w, n in rows],
    ),
    "each, many": (
        lambda s: s.each(lambda t: [(c, 1) for c in t.word or ""], "letter string, one int"),
        lambda rows: [(w, n, c, 1) for w, n in rows for c in w or ""],
    ),
    "each, none": (
        lambda s: s.each(lambda t: t.word, "again string"),
        lambda rows: [(w, n, w) for w, n in rows if w is not None],
    ),
    "filter by a function": (lambda s: s.filter(lambda t: t.n), lambda rows: [row for row in rows if row[1]]),
    "filter by an expression": (lambda s: s.filter(field("n") > 1), lambda rows: [(w, n) for w, n in known if n > 1]),
    "peek": (lambda s: s.peek(lambda t: t.word), lambda rows: rows),
    "filters and peeks": (
        lambda s: s.filter(lambda t: t.n).peek(hash).filter(lambda t: t.n != 3),
        lambda rows: [(w, n) for w, n in known if n != 3],
    ),
    "with_columns": (
        lambda s: s.with_columns(n=field("n") * 2, size=pc.utf8_length(field("word")), one=1),
        lambda rows: [(w, n if n is None else 2 * n, None if w is None else len(w), 1) for w, n in rows],
    ),
    "project": (lambda s: s.project("n", "word"), lambda rows: [(n, w) for w, n in rows]),
    "rename": (
        lambda s: s.rename(count="n").map(lambda t: (t["count"], t.word), "count long, w string"),
        lambda rows: [(n, w) for w, n in rows],
    ),
    "arrow": (lambda s: s.arrow(doubled), lambda rows: [(n if n is None else 2 * n, w) for w, n in rows]),
    "rows, columns, rows": (
        lambda s: (
            s.filter(lambda t: t.n is not None)
            .map(lambda t: t.n + 1, "n long")
            .with_columns(n=field("n") * 3)
            .map(lambda t: t.n - 1)
        ),
        lambda rows: [(3 * (n + 1) - 1,) for _, n in known],
    ),
    "a prepared function": (
        lambda s: s.filter(field("n").is_valid()).map(Prepared(), "n long"),
        lambda rows: [(100 + n,) for _, n in known],
    ),
    "shared": (lambda s: s.apply(lambda stream, name: stream.project(name), "n"), lambda rows: [(n,) for _, n in rows]),
}


@pytest.mark.parametrize("name", MEANINGS)
def test_an_operation_means_what_it_means_in_plain_python(name: str) -> None:
    make, meaning = MEANINGS[name]
    assert emitted(make, PAIR_ROWS, PAIRS) == meaning(PAIR_ROWS)


numbers = st.lists(st.tuples(st.none() | st.text("ab", max_size=3), st.none() | st.integers(-4, 4)), max_size=6)
CHAINS: list[tuple[tuple[Make, Make], Callable[[Rows], Rows]]] = [
    (
        (
            lambda s: s.filter(lambda t: t.n is not None and t.n > 0),
            lambda s: s.filter(field("n") > 0),
        ),
        lambda rows: [(w, n) for w, n in rows if n is not None and n > 0],
    ),
    (
        (
            lambda s: s.map(lambda t: (t.word, None if t.n is None else t.n * 2)),
            lambda s: s.with_columns(n=field("n") * 2),
        ),
        lambda rows: [(w, None if n is None else n * 2) for w, n in rows],
    ),
    (
        (
            lambda s: s.each(lambda t: (None if t.word is None else len(t.word),), "size int"),
            lambda s: s.with_columns(size=pc.utf8_length(field("word"))),
        ),
        lambda rows: [(w, n, None if w is None else len(w)) for w, n in rows],
    ),
    (
        (
            lambda s: s.map(lambda t: (t.n, t.word), "n long, word string"),
            lambda s: s.project("n", "word"),
        ),
        lambda rows: [(n, w) for w, n in rows],
    ),
]
"""The same three times: by functions of rows, in Arrow, in plain Python. All but the last keep what the next needs."""


@given(numbers, st.lists(st.tuples(st.sampled_from([0, 1]), st.booleans()), max_size=4), st.sampled_from([2, 3]))
def test_rows_and_arrow_do_the_same_in_any_order(rows: Rows, chain: list[tuple[int, bool]], last: int) -> None:
    def make(stream: Stream) -> Stream:
        for number, in_arrow in [*chain, (last, len(chain) % 2 == 0)]:
            stream = CHAINS[number][0][in_arrow](stream)
        return stream

    expected = rows
    for number, _ in [*chain, (last, True)]:
        expected = CHAINS[number][1](expected)
    assert emitted(make, rows, PAIRS) == expected


def test_a_batch_that_arrow_takes_in_parts_keeps_its_order() -> None:
    rows = [(str(n), n) for n in range(33_000)]
    found = emitted(lambda s: s.with_columns(n=field("n") * 2).filter(field("n") >= 0), rows, PAIRS)
    assert [n for _, n in found] == [2 * n for _, n in rows]


class Halves(BatchAggregator):
    """Forgets to make tuples of its texts."""

    output = "one string, two string"

    def init(self) -> None:
        pass

    def aggregate(self, kept: None, row: Tuple) -> None:
        pass

    def complete(self, kept: None) -> Any:
        return ["ab"]


def test_of_nothing_one_task_makes_tuples() -> None:
    """By key there is none; of an aggregate that sees only its task, each does."""

    class Ends(Halves):
        def complete(self, kept: None) -> Any:
            return [("none", "at all")]

    words = Schema.parse(PAIRS)
    for is_whole, key, rows in (True, (), [1, 0]), (True, ("word",), [0, 0]), (False, (), [1, 1]):
        step = batch_aggregator_step("aggregate", key, Ends(), words, is_whole=is_whole)
        found = [sum(batch.num_rows for batch in step.finish([], is_first=is_first)) for is_first in (True, False)]
        assert found == rows


MISMATCHES: dict[str, tuple[Make, str]] = {
    "map to nothing": (lambda s: s.map(lambda t: None), "map(lambda) must return a tuple with 2 values; got None"),
    "map to too much": (
        lambda s: s.map(lambda t: (1, 2, 3)),
        "map(lambda) returned 3 values for 2 fields; got (1, 2, 3)",
    ),
    "map to another type": (
        lambda s: s.map(lambda t: (1, 2)),
        "declares field 'word' as string and emitted something else",
    ),
    "flat_map to text": (
        lambda s: s.flat_map(lambda t: "ab", "c string"),
        "flat_map(lambda) must return a tuple, an iterable of tuples, or None; got 'ab'",
    ),
    "flat_map to a number": (
        lambda s: s.flat_map(lambda t: 1, "n int"),
        "flat_map(lambda) must return a tuple, an iterable of tuples, or None; got 1",
    ),
    "arrow to other fields": (
        lambda s: s.arrow(doubled, "m long"),
        "arrow(doubled)' declares the fields ['m'] and emitted ['n', 'word']",
    ),
    "no more rows": (
        lambda s: s.filter(lambda t: next(iter(()))),
        "raised RuntimeError: generator raised StopIteration",
    ),
    "half a row": (
        lambda s: s.aggregate(Halves()),
        "aggregate(Halves()) must return a tuple with 2 values; got 'ab'",
    ),
    "no such field": (
        lambda s: s.filter(lambda t: t.wrod),
        "has no field 'wrod'; its fields are word, n — did you mean 'word'?",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_what_a_function_returns_that_does_not_fit_is_reported(name: str) -> None:
    make, message = MISMATCHES[name]
    with pytest.raises(TransactionalError) as raised:
        emitted(make, PAIR_ROWS, PAIRS)
    assert message in str(raised.value)
