"""Dead letters: tuples that were set aside because a bolt failed on them as often as is allowed. The schema of their
table, and its rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from transactional.core.ports import DeadLetter, State
from transactional.core.store.rules import storable
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, CorruptRecord
from transactional.model.letters import Letter
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import BeyondPython, Key

LETTER_KEY = "transaction long, number long"
LETTER_VALUES = "component string, source string, stream string, tuple string, error string, tried_again_in long"
"""The tuple is JSON; source and stream are its origin, component and error where it ended. `tried_again_in` is the
transaction in which it was sent to its bolt again."""


def check_dead_letters(state: State) -> None:
    """Raise `ConfigError` unless the state can hold dead letters."""
    if state.key != Schema.parse(LETTER_KEY) or state.values != Schema.parse(LETTER_VALUES):
        raise ConfigError(
            "set_dead_letters takes a DeadLetterTable('path/of/a/table'), or another state with "
            f"key='{LETTER_KEY}' and values='{LETTER_VALUES}'"
        )


def letter_rows(
    attempt: TransactionAttempt, letters: Sequence[DeadLetter], tried_again: Sequence[Letter] = ()
) -> dict[Key, tuple[Any, ...]]:
    """The letters of one transaction as rows, independent of the order in which they were found; and the rows of those
    that it has retried."""
    rows = sorted((x.exclusion.component, x.source, x.stream, x.tuple, storable(x.exclusion.error)) for x in letters)
    new: dict[Key, tuple[Any, ...]] = {(attempt.txid, number): (*row, None) for number, row in enumerate(rows)}
    done: dict[Key, tuple[Any, ...]] = {
        (x.txid, x.number): (x.component, x.source, x.stream, x.values, x.error, attempt.txid) for x in tried_again
    }
    return done | new


def values_to_json(values: Mapping[str, object]) -> str:
    """A tuple's values by field, readable for people and for `values_from_json`."""
    return json.dumps(_escaped(values), default=_to_json)


def values_from_json(text: str) -> dict[str, Any]:
    """The inverse of `values_to_json`. Raises `CorruptRecord` for anything that is not a tuple."""
    try:
        values = json.loads(text, object_hook=_from_json)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise CorruptRecord(f"the tuple of a dead letter, {str(text)[:200]!r}, is not readable: {error!r}") from error
    if not isinstance(values, dict):
        raise CorruptRecord(f"the tuple of a dead letter, {str(text)[:200]!r}, is not a JSON object")
    return values


def _escaped(value: Any) -> Any:
    """Structs of one field whose name could be one of ours get another `$` as a prefix."""
    match value:
        case dict():
            mark = "$" if len(value) == 1 else ""
            return {mark * str(name).startswith("$") + str(name): _escaped(each) for name, each in value.items()}
        case list() | tuple():
            return [_escaped(each) for each in value]
    return value


def _to_json(value: Any) -> dict[str, str]:
    for name, (kind, to_text, _) in _KINDS.items():
        if isinstance(value, kind):
            return {name: to_text(value)}
    raise TypeError(f"a {type(value).__name__} can't be a value of a tuple")


def _from_json(found: dict[str, Any]) -> Any:
    if len(found) == 1:
        [(name, value)] = found.items()
        if name in _KINDS:
            return _KINDS[name][2](value)
        if name.startswith("$$"):
            return {name[1:]: value}
    return found


_KINDS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    # What Python can't represent; Arrow interprets the number as that time.
    "$number": (BeyondPython, lambda value: value.text, int),
    "$binary": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "$timestamp": (datetime, datetime.isoformat, datetime.fromisoformat),
    "$date": (date, date.isoformat, date.fromisoformat),
    "$decimal": (Decimal, str, Decimal),
}
"""Types that JSON lacks: their name there, their Python type, conversion to text and back."""
