"""Cases of one transaction after the other: rows that were written can be read, and values are combined."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa

from transactional.core.ports import Partials, StateKind
from transactional.model.errors import ProtocolError, SchemaMismatch
from transactional.testing.states.trial import KINDS, Trial, case, cases

INF, NAN = float("inf"), float("nan")


@case
def starts_empty(trial: Trial) -> None:
    """A new table has no rows, and no version."""
    words = trial.open()
    words.check_rows({})
    words.check_version(None)
    words.check_lookup(1, {}, ["cat"])


@cases(KINDS)
def adds_up(trial: Trial, kind: StateKind) -> None:
    """The second of two transactions is combined with the rows of the first, and its attempt is the version then.

    Each runs once: replays are in `replays`.
    """
    words = trial.open(kind=kind)
    words.merge(1, {"cat": 2, "dog": 1})
    last = words.merge(2, {"cat": 1, "bird": 5})
    words.check_rows({"cat": 3, "dog": 1, "bird": 5})
    words.check_version(last)
    trial.check_equal("its kind", words.state.parts.declared.kind, kind)


@case
def empty_batches(trial: Trial) -> None:
    """A transaction without rows writes the version all the same."""
    words = trial.open()
    words.check_version(words.merge(1, {}))
    words.merge(2, {"cat": 1})
    words.check_version(words.put(3, {}))
    words.check_rows({"cat": 1})


@case
def reads_and_puts(trial: Trial) -> None:
    """A bolt reads the values that earlier transactions have put, NULL included (Storm row R22)."""
    words = trial.open()
    first = trial.attempt(1)
    words.check_lookup(first, {}, ["cat"])
    words.put(first, {"cat": 1, "dog": None})
    second = trial.attempt(2)
    words.check_lookup(second, {"cat": 1, "dog": None}, ["cat", "dog", "bird"])
    words.put(second, {"cat": 7})
    words.check_rows({"cat": 7, "dog": None})


@cases(KINDS)
def puts_in_every_transaction(trial: Trial, kind: StateKind) -> None:
    """One process reads and writes all the time, and finds what it has put."""
    words, expected = trial.open(kind=kind), dict[str | None, int]()
    asked = ["cat", None, *(f"word {number}" for number in range(12))]
    for txid in range(1, 12):
        attempt = trial.attempt(txid)
        words.check_lookup(attempt, expected, asked)
        rows: dict[str | None, int] = {"cat": txid, f"word {txid}": txid, **({None: 7} if txid == 2 else {})}
        words.put(attempt, rows)
        expected |= rows
        words.state.parts.maintenance.maintain(attempt.txid, lambda: True)
    words.check_lookup(12, expected, asked)


@case
def opened_again(trial: Trial) -> None:
    """The next process finds the rows that were written."""
    words = trial.open()
    attempt = words.merge(1, {"cat": 2, None: 1})
    words.close()
    reopened = trial.open()
    reopened.check_version(attempt)
    reopened.merge(2, {"cat": 1})
    reopened.check_rows({"cat": 3, None: 1})


@case
def what_attempts_have_written(trial: Trial) -> None:
    """`rows_after` shows an attempt its own rows, `rows_before` what was before, also once they are written."""
    words = trial.open()
    words.put(1, {"cat": 1, "dog": 1})
    second = words.put(2, {"cat": 2, "owl": 2})
    keys = ["cat", "dog", "owl", "emu"]
    rows_after = words.rows(words.state.parts.lookup.rows_after(second, words.keys_of(keys)))
    trial.check_equal("rows_after()", rows_after, {"cat": 2, "dog": 1, "owl": 2})
    rows_before = words.rows(words.state.parts.lookup.rows_before(trial.attempt(2), words.keys_of(keys)))
    trial.check_equal("rows_before()", rows_before, {"cat": 1, "dog": 1})


@case
def nulls_count_as_nothing(trial: Trial) -> None:
    """A NULL that comes changes nothing, and one that is there is replaced."""
    words = trial.open()
    words.merge(1, {"cat": 2, "dog": None})
    words.merge(2, {"cat": None, "dog": 3})
    words.check_rows({"cat": 2, "dog": 3})


@case
def columns_are_combined_in_their_own_ways(trial: Trial) -> None:
    """A column has a sum, the least, the greatest or the last value, each as declared; columns keep their order."""
    words = trial.open(values="total decimal(10,2), least double, most date, newest string")
    combine = {"total": "sum", "least": "min", "most": "max", "newest": "last"}
    words.merge(1, {"cat": (Decimal("1.25"), 0.5, datetime.date(2020, 1, 1), "a")}, combine)
    words.merge(2, {"cat": (Decimal("1.50"), -0.5, datetime.date(2019, 1, 1), None)}, combine)
    words.check_rows({"cat": (Decimal("2.75"), -0.5, datetime.date(2020, 1, 1), None)})
    words.merge(2, {"cat": (Decimal("0.25"), None, datetime.date(2021, 1, 1), "b")}, combine)
    words.check_rows({"cat": (Decimal("1.50"), 0.5, datetime.date(2021, 1, 1), "b")})
    words.check_rows({"cat": (Decimal("1.25"), 0.5, datetime.date(2020, 1, 1), "a")}, committed=1)


@case
def not_a_number(trial: Trial) -> None:
    """NaN and the infinities are values, and no NULL."""
    words = trial.open(values="measure double, single float")
    words.put(1, {"a": (NAN, -INF), "b": (None, 0.5)})
    words.check_rows({"a": (NAN, -INF), "b": (None, 0.5)})


@case
def not_a_number_is_the_greatest(trial: Trial) -> None:
    """NaN is greater than every number, in whatever order values come."""
    histories: dict[str, tuple[list[float | None], tuple[float, float]]] = {
        "nan": ([NAN, NAN, None], (NAN, NAN)),
        "first": ([NAN, 1.0, 2.0], (1.0, NAN)),
        "last": ([1.0, 2.0, NAN], (1.0, NAN)),
        "between": ([-1.0, NAN, -2.0], (-2.0, NAN)),
        "inf": ([INF, INF, INF], (INF, INF)),
        "-inf": ([-INF, None, -INF], (-INF, -INF)),
        "both": ([INF, -INF, NAN], (-INF, NAN)),
    }
    words = trial.open(values="least double, most double")
    for txid in (1, 2, 3):
        rows = {word: (numbers[txid - 1],) * 2 for word, (numbers, _) in histories.items()}
        words.merge(txid, rows, {"least": "min", "most": "max"})
    expected = {word: ends for word, (_, ends) in histories.items()}
    words.check_rows(expected)
    words.check_lookup(4, expected, histories)


@case
def one_row_for_a_key(trial: Trial) -> None:
    """Two rows for one key are refused, as one of them would silently win (Storm row R26)."""
    words = trial.open()
    twice = Partials({"count": "sum"}, pa.table({"word": ["cat", "cat"], "count": [1, 2]}))
    trial.note("writer 1 merges two rows for the key 'cat'")
    trial.expect_error(ProtocolError, lambda: words.state.merge(trial.attempt(1), twice))
    words.check_version(None)


@case
def values_of_another_type(trial: Trial) -> None:
    """Values that a column can't hold are refused before anything is written; `check_rows` writes nothing at all."""
    words = trial.open()
    trial.expect_error(SchemaMismatch, lambda: words.put(1, {"cat": "many"}))
    words.state.parts.declared.check_rows({("cat",): (1,)})
    words.check_version(None)
    words.check_rows({})


@case
def columns_that_are_not_there(trial: Trial) -> None:
    """Values for other columns than the table has are refused."""
    words = trial.open()
    unknown_column = Partials({"total": "sum"}, pa.table({"word": ["a"], "total": [1]}))
    trial.note("writer 1 merges the column 'total'")
    trial.expect_error(ProtocolError, lambda: words.state.merge(trial.attempt(1), unknown_column))
    words.check_version(None)


@case
def identities(trial: Trial) -> None:
    """A state's identity is text by name, the same for all its writers, and another one for other columns or kinds."""
    words, second = trial.open().state.identity(), trial.open().state.identity()
    trial.check_equal("identity() of the second writer", dict(second), dict(words))
    trial.check_equal("the types in identity()", {type(text).__name__ for text in words.values()}, {"str"})
    differing = [
        trial.make(trial.table, "other string", "count long", StateKind.OPAQUE),
        trial.make(trial.table, "word string", "other long", StateKind.OPAQUE),
        trial.make(f"{trial.table}x", "word string", "count long", StateKind.OPAQUE),
    ]
    same = [number for number, state in enumerate(differing) if dict(state.identity()) == dict(words)]
    trial.check_equal("states of another key, other values, or another table with this identity", same, [])
