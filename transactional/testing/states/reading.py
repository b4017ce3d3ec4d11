"""Who else reads and writes a table: readers from outside, tasks of a step, and updates."""

from __future__ import annotations

from contextlib import closing
from math import isclose
from typing import Any

import pyarrow as pa

from transactional.core.ports import Partials
from transactional.model.absent import ABSENT
from transactional.model.aggregates import Avg, Count, Max, Min, Sum
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError
from transactional.model.reading import StateReader
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key
from transactional.testing.states.trial import OWNER, NotOffered, Rows, Trial, Writer, case


def _reader(words: Writer) -> StateReader:
    try:
        return words.state.reader(OWNER)
    except ConfigError as error:
        raise NotOffered(str(error)) from error


def _check(trial: Trial, words: Writer, reader: StateReader, txid: int, expected: Rows) -> None:
    """All rows as of a transaction; a look-up of some keys gives the same."""
    trial.equal(f"a reader's rows({txid})", words.rows(reader.rows(TxId(txid))), expected)
    keys = ["a", "b", None, "nobody"]
    found = words.rows(reader.lookup(TxId(txid), words.keys_of(keys)))
    some = {key: each for key, each in expected.items() if key in keys}
    trial.equal(f"a reader's lookup({txid})", {key: each for key, each in found.items() if key in keys}, some)


@case
def a_reader_sees_what_is_committed(trial: Trial) -> None:
    """A reader sees one transaction, the committed one or the one before, dead attempts or not; and what it has pinned
    stays as it is."""
    words = trial.open()
    words.fence(0)
    history: list[dict[str | None, int]] = [{"a": 1, "b": 2}, {"b": 3, None: 1}, {}, {"a": 5, "c": 1}, {None: 2}]
    before = dict[str | None, int]()
    with closing(_reader(words)) as reader:
        for txid, rows in enumerate(history, start=1):
            words.merge(txid, {"zombie": 7, "a": 70})
            reader.pin()
            _check(trial, words, reader, txid - 1, before)
            reader.release()
            words.fence(txid)
            words.merge(txid, rows)
            after = {key: before.get(key, 0) + rows.get(key, 0) for key in (*before, *rows)}
            reader.pin()
            _check(trial, words, reader, txid - 1, before)
            _check(trial, words, reader, txid, after)
            reader.release()
            words.state.maintain(TxId(txid), lambda: True)
            before = after


@case
def what_is_pinned_stays(trial: Trial) -> None:
    """A writer does not wait for a reader, who still sees the transaction that it has pinned."""
    words = trial.open()
    words.fence(0)
    words.merge(1, {"a": 1})
    with closing(_reader(words)) as reader:
        reader.pin()
        words.merge(2, {"a": 1, "b": 1})
        _check(trial, words, reader, 1, {"a": 1})


@case
def tasks_of_a_step(trial: Trial) -> None:
    """Tasks read what was before, and the driver commits what they have kept, once."""
    words = trial.open(deletes=True)
    words.put(1, {"a": 1, "b": 2, "c": 3})
    if not words.state.serves_tasks:
        trial.equal("for_tasks()", words.state.for_tasks(trial.attempt(2)), None)
        raise NotOffered(f"tasks can't write a {type(words.state).__name__}")
    puts: list[dict[Key, Any]] = [{("a",): (5,), ("b",): ABSENT}, {("a",): (7,)}]
    for own in puts:
        attempt = trial.attempt(2)
        trial.note(f"two tasks of attempt {attempt.attempt_id} at transaction 2 put {own} and {{('d',): (4,)}}")
        part = words.state.for_tasks(attempt)
        assert part is not None
        trial.equal("get() of a task", part.get([("a",), ("d",)]), {("a",): (1,)})
        parts = [part.keep(part.table(rows), tasks=2) for rows in (own, {("d",): (4,)})]
        words.state.put_parts(attempt, parts)
    words.holds({"a": 7, "b": 2, "c": 3, "d": 4})
    words.holds({"a": 1, "b": 2, "c": 3}, committed=1)


Numbers = dict[str, list[int | None]]
FIRST: Numbers = {"a": [1, 2, None, 6], "b": [None]}
DEAD: Numbers = {"a": [7], "zombie": [7], "c": [None]}
SECOND: Numbers = {"a": [4, 4], "c": [3, 4]}
NUMBERS = Schema.parse("word string, n long")


@case
def aggregates(trial: Trial) -> None:
    """An update keeps counts, sums, extremes and means of what was committed; a mean is computed when it is read."""
    words = trial.open(values="rows long, total long, least long, most long, sum_n long, count_n long")
    try:
        wanted = {"rows": Count(), "total": Sum("n"), "least": Min("n"), "most": Max("n"), "mean_n": Avg("n")}
        update: Any = words.state.aggregate(wanted)
    except ConfigError as error:
        raise NotOffered(str(error)) from error
    update.check_input(NUMBERS, used_by="the test")
    words.fence(0)
    _merge_parts(trial, words, update, 1, FIRST)
    _merge_parts(trial, words, update, 2, DEAD)
    words.fence(2)
    _merge_parts(trial, words, update, 2, SECOND)
    both = {word: [*FIRST.get(word, []), *SECOND.get(word, [])] for word in {**FIRST, **SECOND}}
    for committed, numbers in ((None, both), (1, FIRST)):
        rows = words.state.read(None if committed is None else TxId(committed)).to_pylist()
        found = {row["word"]: [row[each] for each in ("rows", "total", "least", "most", "mean_n")] for row in rows}
        expected = {word: _aggregated(its) for word, its in numbers.items()}
        trial.equal("the aggregates", _without_last(found), _without_last(expected))
        trial.equal("whether the means are right", all(_close(found[word], expected[word]) for word in found), True)


def _merge_parts(trial: Trial, words: Writer, update: Any, txid: int, numbers: Numbers) -> None:
    """What two tasks make of the numbers, and the driver of that."""
    rows = [{"word": word, "n": each} for word, its in numbers.items() for each in its]
    aggregator = update.aggregator()
    parts = [
        aggregator.partial(pa.Table.from_pylist(rows[at::2], arrow_schema(NUMBERS)).to_batches()) for at in range(2)
    ]
    attempt = trial.attempt(txid)
    trial.note(f"{words.name}, {attempt}, merges the aggregates of {numbers}")
    words.state.merge(attempt, Partials(update.combine, aggregator.combine(parts)))


def _aggregated(numbers: list[int | None]) -> list[Any]:
    there = [each for each in numbers if each is not None]
    if not there:
        return [len(numbers), None, None, None, None]
    return [len(numbers), sum(there), min(there), max(there), sum(there) / len(there)]


def _without_last(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {word: each[:-1] for word, each in rows.items()}


def _close(found: list[Any], expected: list[Any]) -> bool:
    """Whether two means are equal, to the last digit of a double but one."""
    one, other = found[-1], expected[-1]
    return one == other or (None not in (one, other) and isclose(one, other, rel_tol=1e-15))
