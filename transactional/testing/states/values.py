"""Cases of keys and values of every type, at their limits, and of texts that look like SQL or patterns."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from typing import Any, Final

from transactional.core.ports import StateKind
from transactional.model.errors import ConfigError, SchemaMismatch, SumOverflow
from transactional.testing.states.trial import Trial, case, cases

UTC = datetime.UTC
KEYS: Final[dict[str, list[Any]]] = {
    "string": ["a", "", "b'\"`\\", "ä"],
    "long": [1, -1, 2**62],
    "int": [1, -1],
    "short": [1, -1],
    "byte": [1, -1],
    "boolean": [True, False],
    "date": [datetime.date(2020, 2, 29), datetime.date(1960, 1, 1)],
    "timestamp": [datetime.datetime(2020, 1, 1, 1, 2, 3, 456, tzinfo=UTC), datetime.datetime(1960, 1, 1, tzinfo=UTC)],
    "decimal(10,2)": [Decimal("1.10"), Decimal("-3.00")],
    "binary": [b"\x00a", b""],
}
EXTREMES: Final[dict[str, list[Any]]] = {
    "string": ["", " ", "\n\r\t", "x" * 70_000, "\u202e🐈\U0010ffff", "NULL", "nan"],
    "long": [-(2**63), 2**63 - 1],
    "int": [-(2**31), 2**31 - 1],
    "short": [-(2**15), 2**15 - 1],
    "byte": [-(2**7), 2**7 - 1],
    "double": [5e-324, -sys.float_info.max, 0.1, float("inf")],
    "float": [2.0**-149, -(2.0**127), float("-inf")],
    "date": [datetime.date.min, datetime.date.max],
    "timestamp": [datetime.datetime.min.replace(tzinfo=UTC), datetime.datetime.max.replace(tzinfo=UTC)],
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(-(10**38) + 1)],
    "decimal(38,38)": [Decimal((0, (9,) * 38, -38)), Decimal((1, (0,) * 37 + (1,), -38))],
    "binary": [b"", bytes(range(256)), b"\xff" * 70_000],
    "boolean": [False, True],
}
HOSTILE: Final = (
    "x'; DROP TABLE transactional_states; --",
    'x"; DELETE FROM "words" WHERE 1=1; --',
    "%s ? :wanted $1 {0}",
    "SELECT",
    "back\\slash `tick` [box]",
    "é 🐈 \u202e",
    "%",
    "_",
)
NAMES: Final = {
    **{name: name for name in ("select", "%s", ":wanted", "$1", "back~tick|", "é🐈", "a:b", "_a-[0]", "rowid")},
    "64 bytes": "x" * 63,
    "255 bytes": "x" * 254,
}
"""One byte is added to each."""
LARGEST: Final = {
    "byte": 2**7 - 1,
    "short": 2**15 - 1,
    "int": 2**31 - 1,
    "long": 2**63 - 1,
    "decimal(5,2)": 10**5 - 1,
    "decimal(38,0)": 10**38 - 1,
    "decimal(38,18)": 10**38 - 1,
}
"""The largest number of each type, in units of its last digit."""


@cases(KEYS)
def keys_of_a_type(trial: Trial, type_: str) -> None:
    """Keys of every type are different ones, NULL is one of them, and they are found again."""
    keys = [*KEYS[type_], None]
    words = trial.open(f"K {type_}")
    words.merge(1, dict.fromkeys(keys, 1))
    words.merge(2, dict.fromkeys(keys[1:], 1))
    expected = {keys[0]: 1, **dict.fromkeys(keys[1:], 2)}
    words.check_rows(expected)
    words.check_lookup(3, expected, keys)
    words.merge(2, dict.fromkeys(keys, 1))
    words.check_rows(dict.fromkeys(keys, 2))


@case
def keys_of_all_types_together(trial: Trial) -> None:
    """A key may have columns of every type, all of them NULL."""
    key = ", ".join(f"K{number} {type_}" for number, type_ in enumerate(KEYS))
    first, further = (tuple(values[number] for values in KEYS.values()) for number in range(2))
    all_null = (None,) * len(KEYS)
    words = trial.open(key)
    words.merge(1, {first: 1, further: 1, all_null: 1})
    words.merge(2, {further: 1, all_null: 1})
    words.check_rows({first: 1, further: 2, all_null: 2})


@case
def keys_of_several_columns(trial: Trial) -> None:
    """Keys with a NULL in one of their columns are other keys than those without."""
    words = trial.open("Word string, `as` int")
    words.merge(1, {("a", 1): 1, ("a", None): 1, (None, None): 1})
    words.merge(2, {("a", None): 1, ("a", 2): 1})
    expected = {("a", 1): 1, ("a", None): 2, (None, None): 1, ("a", 2): 1}
    words.check_rows(expected)
    words.check_lookup(3, {("a", None): 2, ("a", 2): 1}, [("a", None), ("b", 1), ("a", 2)])


@case
def keys_of_one_instant(trial: Trial) -> None:
    """A time is the instant that it is, in whatever zone it is given (Storm row R25)."""
    aware = datetime.datetime(2020, 1, 1, 12, tzinfo=UTC)
    elsewhere = aware.astimezone(datetime.timezone(datetime.timedelta(hours=5)))
    words = trial.open("at timestamp, word string")
    words.put(1, {(aware, "a"): 1})
    keys = [(aware, "a"), (elsewhere, "a")]
    trial.note(f"writer 1 reads {keys}")
    trial.check_equal("get()", words.state.get(trial.attempt(2), keys), dict.fromkeys(keys, (1,)))
    words.put(2, {(elsewhere, "a"): 2})
    words.check_rows({(aware, "a"): 2})


@case
def a_state_of_one_row(trial: Trial) -> None:
    """A state without a key has one row, once it was written."""
    words = trial.open(())
    words.merge(1, {})
    words.check_rows({})
    words.merge(2, {(): 3})
    words.merge(3, {(): 4})
    words.merge(3, {(): 5})
    words.check_rows({(): 8})
    words.check_lookup(3, {(): 3}, [()])


@cases(EXTREMES)
def extreme_values(trial: Trial, type_: str) -> None:
    """The limits of each type come back as they were put, also as what was before."""
    values = dict(enumerate([*EXTREMES[type_], None]))
    state = trial.open("n long", f"v {type_}")
    state.put(1, values)
    state.check_rows(values)
    state.put(2, dict.fromkeys(values))
    state.check_rows(values, committed=1)
    state.put(2, {})
    state.check_rows(values)
    state.close()
    trial.open("n long", f"v {type_}").check_lookup(3, values, values)


@case
def hostile_texts(trial: Trial) -> None:
    """Texts that look like SQL or like patterns stay texts, as keys and as values."""
    rows = dict(zip(HOSTILE, reversed(HOSTILE), strict=True))
    words = trial.open(values="v string")
    words.put(1, rows)
    words.put(2, {HOSTILE[0]: "another"})
    words.put(2, {HOSTILE[-1]: None})
    words.check_lookup(3, {**rows, HOSTILE[-1]: None}, HOSTILE)
    words.check_rows(rows, committed=1)


@case
def zero_bytes_in_text(trial: Trial) -> None:
    """Text with a zero byte is stored as it is, or refused before anything is written."""
    words = trial.open(values="v string")
    words.put(1, {"a": "b"})
    try:
        words.put(2, {"a\0": "b\0", "a": "c"})
    except SchemaMismatch:
        words.check_rows({"a": "b"})
    else:
        words.check_rows({"a\0": "b\0", "a": "c"})
        words.check_lookup(3, {"a\0": "b\0"}, ["a\0"])


@cases(NAMES)
def names_of_columns(trial: Trial, label: str) -> None:
    """A name of columns works in each of its places, or is refused with a `ConfigError` that has it, before anything is
    written."""
    name = NAMES[label]
    columns = f"`{name}k` string", f"`{name}v` long"
    try:
        trial.make(trial.table, *columns, StateKind.OPAQUE)
    except ConfigError as error:
        trial.check_equal("whether the error names the column", name in str(error), True)
        return
    words = trial.open(*columns)
    for txid, rows in enumerate(({"a": 1, "": 1}, {"a": 2, "é": 1}, {"a": 3}), start=1):
        words.put(txid, rows)
    words.check_rows({"a": 3, "": 1, "é": 1})
    words.check_rows({"a": 2, "": 1, "é": 1}, committed=2)
    trial.open(*columns).check_lookup(4, {"a": 3, "": 1}, ["a", "", "b"])


# --- sums -------------------------------------------------------------------------------------------------------------


def _number(units: int, type_: str) -> Any:
    """A value of so many units of the type's last digit."""
    if not type_.startswith("decimal"):
        return units
    scale = int(type_[:-1].split(",")[1])
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))


@cases(LARGEST)
def sums_up_to_the_limit(trial: Trial, type_: str) -> None:
    """A sum is exact up to the limit of its column, and refused beyond before anything is written; what fits is added
    afterwards."""
    for sign in (1, -1):
        words, limit = trial.open(values=f"total {type_}"), sign * LARGEST[type_]
        # Integers have one more below zero.
        least = sign if sign > 0 or type_.startswith("decimal") else 2 * sign
        offset = 0 if sign > 0 else 3
        words.merge(offset + 1, _units(type_, {f"cat{sign}": limit - sign, f"dog{sign}": sign}))
        last = words.merge(offset + 2, _units(type_, {f"cat{sign}": sign}))
        beyond = _units(type_, {f"dog{sign}": sign, f"cat{sign}": least})
        trial.expect_error(SumOverflow, lambda: words.merge(offset + 3, beyond))  # noqa: B023 - called at once
        words.check_version(last)
        words.merge(offset + 3, _units(type_, {f"cat{sign}": -sign, f"dog{sign}": sign, f"emu{sign}": limit}))
        expected = _units(type_, {f"cat{sign}": limit - sign, f"dog{sign}": 2 * sign, f"emu{sign}": limit})
        words.check_lookup(offset + 4, expected, expected)


def _units(type_: str, units: dict[str, int]) -> dict[str, Any]:
    return {word: _number(number, type_) for word, number in units.items()}


@cases(("long", "decimal(38,0)"))
def sums_start_from_what_was_before(trial: Trial, type_: str) -> None:
    """Whether a sum fits is decided without what a dead attempt has added."""
    words, limit = trial.open(values=f"total {type_}"), LARGEST[type_]
    words.merge(1, _units(type_, {"cat": 1}))
    for _ in range(3):
        words.merge(2, _units(type_, {"cat": limit - 1}))
    words.check_rows(_units(type_, {"cat": limit}))
    reopened = trial.open(values=f"total {type_}")
    trial.expect_error(SumOverflow, lambda: reopened.merge(3, _units(type_, {"cat": 1})))
    reopened.merge(3, _units(type_, {"cat": -limit}))
    reopened.check_rows(_units(type_, {"cat": 0}))


@cases(LARGEST)
def sums_whose_parts_cancel_out(trial: Trial, type_: str) -> None:
    """A sum fits though a part of it would not, in whatever order the parts are added up."""
    half = LARGEST[type_] // 2 + 1
    words = trial.open(values=f"total {type_}")
    for txid, units in enumerate((-1 - LARGEST[type_] % 2, half, half), start=1):
        words.merge(txid, _units(type_, {"cat": units}))
        words.state.parts.maintenance.maintain(trial.txid_of(words.state.version()), lambda: True)
    words.check_rows(_units(type_, {"cat": 2 * half - 1 - LARGEST[type_] % 2}))
