"""One transaction after the other: what is written is there, and how values are combined."""

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
    words.holds({})
    words.is_at(None)
    words.finds(1, {}, ["cat"])


@cases(KINDS)
def adds_up(trial: Trial, kind: StateKind) -> None:
    """Each transaction is combined with what was there, and its attempt is the version then."""
    words = trial.open(kind=kind)
    words.merge(1, {"cat": 2, "dog": 1})
    last = words.merge(2, {"cat": 1, "bird": 5})
    words.holds({"cat": 3, "dog": 1, "bird": 5})
    words.is_at(last)
    trial.equal("its kind", words.state.kind, kind)


@case
def empty_batches(trial: Trial) -> None:
    """A transaction without rows writes the version all the same."""
    words = trial.open()
    words.is_at(words.merge(1, {}))
    words.merge(2, {"cat": 1})
    words.is_at(words.put(3, {}))
    words.holds({"cat": 1})


@case
def reads_and_puts(trial: Trial) -> None:
    """What a bolt reads is what earlier transactions have put, NULL included (Storm row R22)."""
    words = trial.open()
    first = trial.attempt(1)
    words.finds(first, {}, ["cat"])
    words.put(first, {"cat": 1, "dog": None})
    second = trial.attempt(2)
    words.finds(second, {"cat": 1, "dog": None}, ["cat", "dog", "bird"])
    words.put(second, {"cat": 7})
    words.holds({"cat": 7, "dog": None})


@cases(KINDS)
def puts_in_every_transaction(trial: Trial, kind: StateKind) -> None:
    """One process reads and writes all the time, and finds what it has put."""
    words, expected = trial.open(kind=kind), dict[str | None, int]()
    asked = ["cat", None, *(f"word {number}" for number in range(12))]
    for txid in range(1, 12):
        attempt = trial.attempt(txid)
        words.finds(attempt, expected, asked)
        rows: dict[str | None, int] = {"cat": txid, f"word {txid}": txid, **({None: 7} if txid == 2 else {})}
        words.put(attempt, rows)
        expected |= rows
        words.state.maintain(attempt.txid, lambda: True)
    words.finds(12, expected, asked)


@case
def opened_again(trial: Trial) -> None:
    """What was written is there for the next process."""
    words = trial.open()
    attempt = words.merge(1, {"cat": 2, None: 1})
    words.close()
    again = trial.open()
    again.is_at(attempt)
    again.merge(2, {"cat": 1})
    again.holds({"cat": 3, None: 1})


@case
def what_attempts_have_written(trial: Trial) -> None:
    """`rows_after` shows an attempt its own rows, `rows_before` what was before, also once they are written."""
    words = trial.open()
    words.put(1, {"cat": 1, "dog": 1})
    second = words.put(2, {"cat": 2, "owl": 2})
    keys = ["cat", "dog", "owl", "emu"]
    after = words.rows(words.state.rows_after(second, words.keys_of(keys)))
    trial.equal("rows_after()", after, {"cat": 2, "dog": 1, "owl": 2})
    before = words.rows(words.state.rows_before(trial.attempt(2), words.keys_of(keys)))
    trial.equal("rows_before()", before, {"cat": 1, "dog": 1})


@case
def nulls_count_as_nothing(trial: Trial) -> None:
    """A NULL that comes changes nothing, and one that is there is replaced."""
    words = trial.open()
    words.merge(1, {"cat": 2, "dog": None})
    words.merge(2, {"cat": None, "dog": 3})
    words.holds({"cat": 2, "dog": 3})


@case
def columns_are_combined_in_their_own_ways(trial: Trial) -> None:
    """Of each column a sum, the least, the greatest or the last value; the columns keep their order."""
    words = trial.open(values="total decimal(10,2), least double, most date, newest string")
    combine = {"total": "sum", "least": "min", "most": "max", "newest": "last"}
    words.merge(1, {"cat": (Decimal("1.25"), 0.5, datetime.date(2020, 1, 1), "a")}, combine)
    words.merge(2, {"cat": (Decimal("1.50"), -0.5, datetime.date(2019, 1, 1), None)}, combine)
    words.holds({"cat": (Decimal("2.75"), -0.5, datetime.date(2020, 1, 1), None)})
    words.merge(2, {"cat": (Decimal("0.25"), None, datetime.date(2021, 1, 1), "b")}, combine)
    words.holds({"cat": (Decimal("1.50"), 0.5, datetime.date(2021, 1, 1), "b")})
    words.holds({"cat": (Decimal("1.25"), 0.5, datetime.date(2020, 1, 1), "a")}, committed=1)


@case
def not_a_number(trial: Trial) -> None:
    """NaN and the infinities are values, and no NULL."""
    words = trial.open(values="measure double, single float")
    words.put(1, {"a": (NAN, -INF), "b": (None, 0.5)})
    words.holds({"a": (NAN, -INF), "b": (None, 0.5)})


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
    words.holds(expected)
    words.finds(4, expected, histories)


@case
def one_row_for_a_key(trial: Trial) -> None:
    """Two rows for one key are refused, as one of them would silently win (Storm row R26)."""
    words = trial.open()
    twice = Partials({"count": "sum"}, pa.table({"word": ["cat", "cat"], "count": [1, 2]}))
    trial.note("writer 1 merges two rows for the key 'cat'")
    trial.refuses(ProtocolError, lambda: words.state.merge(trial.attempt(1), twice))
    words.is_at(None)


@case
def values_of_another_type(trial: Trial) -> None:
    """Values that a column can't hold are refused before anything is written; `check_put` writes nothing at all."""
    words = trial.open()
    trial.refuses(SchemaMismatch, lambda: words.put(1, {"cat": "many"}))
    words.state.check_put({("cat",): (1,)})
    words.is_at(None)
    words.holds({})


@case
def columns_that_are_not_there(trial: Trial) -> None:
    """Values for other columns than the table has are refused."""
    words = trial.open()
    other = Partials({"total": "sum"}, pa.table({"word": ["a"], "total": [1]}))
    trial.note("writer 1 merges the column 'total'")
    trial.refuses(ProtocolError, lambda: words.state.merge(trial.attempt(1), other))
    words.is_at(None)


@case
def identities(trial: Trial) -> None:
    """Its identity is text by name, the same for each writer, another one for other columns or kinds."""
    words, again = trial.open().state.identity(), trial.open().state.identity()
    trial.equal("identity() of the second writer", dict(again), dict(words))
    trial.equal("the types in identity()", {type(each).__name__ for each in words.values()}, {"str"})
    others = [
        trial.make(trial.table, "other string", "count long", StateKind.OPAQUE),
        trial.make(trial.table, "word string", "other long", StateKind.OPAQUE),
        trial.make(f"{trial.table}x", "word string", "count long", StateKind.OPAQUE),
    ]
    same = [number for number, each in enumerate(others) if dict(each.identity()) == dict(words)]
    trial.equal("states of another key, other values, or another table with this identity", same, [])
