"""Cases of other ways to read and write a table: readers from outside, tasks of a step, and updates."""

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
from transactional.testing.cases.register import NotOffered
from transactional.testing.states.trial import OWNER, Rows, Trial, Writer, case


def _open_reader(words: Writer) -> StateReader:
    try:
        return words.state.parts.reading.reader(OWNER)
    except ConfigError as error:
        raise NotOffered(str(error)) from error


def _check_reader(trial: Trial, words: Writer, reader: StateReader, txid: int, expected: Rows) -> None:
    """Check all rows of a reader as of a transaction, and a look-up of some keys."""
    trial.check_equal(f"a reader's rows({txid})", words.rows(reader.rows(TxId(txid))), expected)
    keys = ["a", "b", None, "nobody"]
    looked_up = words.rows(reader.lookup(TxId(txid), words.keys_of(keys)))
    actual, expected_rows = ({key: rows[key] for key in rows if key in keys} for rows in (looked_up, expected))
    trial.check_equal(f"a reader's lookup({txid})", actual, expected_rows)


@case
def a_reader_sees_what_is_committed(trial: Trial) -> None:
    """A reader sees one transaction, the committed one or the one before, dead attempts or not; and what it has pinned
    stays as it is."""
    words = trial.open()
    words.fence(0)
    history: list[dict[str | None, int]] = [{"a": 1, "b": 2}, {"b": 3, None: 1}, {}, {"a": 5, "c": 1}, {None: 2}]
    committed_rows = dict[str | None, int]()
    with closing(_open_reader(words)) as reader:
        for txid, rows in enumerate(history, start=1):
            words.merge(txid, {"zombie": 7, "a": 70})
            reader.pin()
            _check_reader(trial, words, reader, txid - 1, committed_rows)
            reader.release()
            words.fence(txid)
            words.merge(txid, rows)
            written_rows = {key: committed_rows.get(key, 0) + rows.get(key, 0) for key in (*committed_rows, *rows)}
            reader.pin()
            _check_reader(trial, words, reader, txid - 1, committed_rows)
            _check_reader(trial, words, reader, txid, written_rows)
            reader.release()
            words.state.parts.maintenance.maintain(TxId(txid), lambda: True)
            committed_rows = written_rows


@case
def what_is_pinned_stays(trial: Trial) -> None:
    """A writer does not wait for a reader, who still sees the transaction that it has pinned."""
    words = trial.open()
    words.fence(0)
    words.merge(1, {"a": 1})
    with closing(_open_reader(words)) as reader:
        reader.pin()
        words.merge(2, {"a": 1, "b": 1})
        _check_reader(trial, words, reader, 1, {"a": 1})


@case
def tasks_of_a_step(trial: Trial) -> None:
    """Tasks read the values from before the transaction, and the driver commits the rows that they have stored,
    once."""
    words = trial.open(deletes=True)
    words.put(1, {"a": 1, "b": 2, "c": 3})
    if not words.state.parts.tasks.serves_tasks:
        trial.check_equal("for_tasks()", words.state.parts.tasks.for_tasks(trial.attempt(2)), None)
        raise NotOffered(f"tasks can't write a {type(words.state).__name__}")
    puts: list[dict[Key, Any]] = [{("a",): (5,), ("b",): ABSENT}, {("a",): (7,)}]
    for own_rows in puts:
        attempt = trial.attempt(2)
        trial.note(f"two tasks of attempt {attempt.attempt_id} at transaction 2 put {own_rows} and {{('d',): (4,)}}")
        part = words.state.parts.tasks.for_tasks(attempt)
        assert part is not None
        trial.check_equal("get() of a task", part.get([("a",), ("d",)]), {("a",): (1,)})
        parts = [part.make_part(part.table(rows), tasks=2) for rows in (own_rows, {("d",): (4,)})]
        words.state.parts.tasks.put_parts(attempt, parts)
    words.check_rows({"a": 7, "b": 2, "c": 3, "d": 4})
    words.check_rows({"a": 1, "b": 2, "c": 3}, committed=1)


Numbers = dict[str, list[int | None]]
FIRST: Numbers = {"a": [1, 2, None, 6], "b": [None]}
DEAD: Numbers = {"a": [7], "zombie": [7], "c": [None]}
SECOND: Numbers = {"a": [4, 4], "c": [3, 4]}
NUMBERS = Schema.parse("word string, n long")


@case
def aggregates(trial: Trial) -> None:
    """An update stores counts, sums and extremes of committed tuples; a mean is computed when it is read."""
    words = trial.open(values="rows long, total long, least long, most long, sum_n long, count_n long")
    try:
        columns = {"rows": Count(), "total": Sum("n"), "least": Min("n"), "most": Max("n"), "mean_n": Avg("n")}
        update: Any = words.state.parts.declared.aggregate(columns)
    except ConfigError as error:
        raise NotOffered(str(error)) from error
    update.bind_input(NUMBERS, used_by="the test")
    words.fence(0)
    _merge_parts(trial, words, update, 1, FIRST)
    _merge_parts(trial, words, update, 2, DEAD)
    words.fence(2)
    _merge_parts(trial, words, update, 2, SECOND)
    both = {word: [*FIRST.get(word, []), *SECOND.get(word, [])] for word in {**FIRST, **SECOND}}
    for committed, numbers in ((None, both), (1, FIRST)):
        rows = words.state.parts.reading.read(None if committed is None else TxId(committed)).to_pylist()
        actual = {row["word"]: [row[column] for column in columns] for row in rows}
        expected = {word: _expected_aggregates(numbers_of_word) for word, numbers_of_word in numbers.items()}
        trial.check_equal("the aggregates", _without_mean(actual), _without_mean(expected))
        are_right = all(_has_equal_mean(actual[word], expected[word]) for word in actual)
        trial.check_equal("whether the means are right", are_right, True)


def _merge_parts(trial: Trial, words: Writer, update: Any, txid: int, numbers: Numbers) -> None:
    """Aggregate the numbers in two tasks, combine their results as the driver does, and merge them."""
    rows = [{"word": word, "n": number} for word, numbers_of_word in numbers.items() for number in numbers_of_word]
    aggregator = update.aggregator()
    parts = [
        aggregator.partial(pa.Table.from_pylist(rows[task::2], arrow_schema(NUMBERS)).to_batches()) for task in range(2)
    ]
    attempt = trial.attempt(txid)
    trial.note(f"{words.name}, {attempt}, merges the aggregates of {numbers}")
    words.state.merge(attempt, Partials(update.combine, aggregator.combine(parts)))


def _expected_aggregates(numbers: list[int | None]) -> list[Any]:
    present = [number for number in numbers if number is not None]
    if not present:
        return [len(numbers), None, None, None, None]
    return [len(numbers), sum(present), min(present), max(present), sum(present) / len(present)]


def _without_mean(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {word: aggregates[:-1] for word, aggregates in rows.items()}


def _has_equal_mean(actual: list[Any], expected: list[Any]) -> bool:
    """Return whether two means are equal, except for the last digits of a double."""
    mean, expected_mean = actual[-1], expected[-1]
    return mean == expected_mean or (None not in (mean, expected_mean) and isclose(mean, expected_mean, rel_tol=1e-15))
