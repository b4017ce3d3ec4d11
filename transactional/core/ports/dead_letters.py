"""Dead letters: tuples that were set aside because a bolt failed on them `attempts_max` times.

This module has the schema of their table, makes its rows, and converts a tuple to JSON and back. The JSON is stored,
and people edit it before letters are tried again: it must stay readable, and every value must come back with its type.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from transactional.core.ports import DeadLetter, Sink, State
from transactional.core.store.rules import storable
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, CorruptRecord
from transactional.model.letters import Letter
from transactional.model.names import DEAD_LETTERS
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import BeyondPython, Key

LETTER_KEY = "transaction long, number long"
LETTER_VALUES = "component string, source string, stream string, tuple string, error string, tried_again_in long"
"""The tuple is JSON. Source and stream are its origin, `component` is the bolt that failed, with `error`.

`tried_again_in` is the transaction in which the letter was sent to its bolt again.
"""


LETTER_FIELDS = Schema.parse(f"{LETTER_KEY}, {LETTER_VALUES}")
"""The fields of a letter that is published: those of a row of the table."""


def check_letter_sink(sink: Sink | None) -> None:
    """Raise `ConfigError` unless the sink can publish dead letters."""
    if sink is not None:
        if not isinstance(sink, Sink):
            raise ConfigError(
                f"set_dead_letters: sink= takes a sink such as KafkaSink('host:9092', 'topic'); got {sink!r}"
            )
        sink.check_input(LETTER_FIELDS, used_by=f"sink {DEAD_LETTERS!r}")


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
    """Return the rows of a transaction's new letters, and the changed rows of the letters that it has tried again.

    New letters are numbered in an order that does not depend on the order of their failures.
    """
    rows = sorted(
        (letter.exclusion.component, letter.source, letter.stream, letter.tuple, storable(letter.exclusion.error))
        for letter in letters
    )
    new_rows: dict[Key, tuple[Any, ...]] = {(attempt.txid, number): (*row, None) for number, row in enumerate(rows)}
    changed_rows: dict[Key, tuple[Any, ...]] = {
        (letter.txid, letter.number): (
            *(letter.component, letter.source, letter.stream, letter.values, letter.error),
            attempt.txid,
        )
        for letter in tried_again
    }
    return changed_rows | new_rows


def values_to_json(values: Mapping[str, object]) -> str:
    """Return a tuple's values by field as JSON, readable for people and for `values_from_json`."""
    return json.dumps(_escape(values), default=_to_json)


def values_from_json(text: str) -> dict[str, Any]:
    """Parse the JSON of `values_to_json`. Raises `CorruptRecord` for anything that is not a tuple."""
    try:
        values = json.loads(text, object_hook=_from_json)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise CorruptRecord(f"the tuple of a dead letter, {str(text)[:200]!r}, is not readable: {error!r}") from error
    if not isinstance(values, dict):
        raise CorruptRecord(f"the tuple of a dead letter, {str(text)[:200]!r}, is not a JSON object")
    return values


def _escape(field: Any) -> Any:
    """Add a `$` to the name of a struct's only field if it begins with one, as the names in `_TYPES` do."""
    match field:
        case dict():
            prefix = "$" if len(field) == 1 else ""
            return {prefix * str(name).startswith("$") + str(name): _escape(inner) for name, inner in field.items()}
        case list() | tuple():
            return [_escape(inner) for inner in field]
    return field


def _to_json(field: Any) -> dict[str, str]:
    for name, (python_type, to_text, _) in _TYPES.items():
        if isinstance(field, python_type):
            return {name: to_text(field)}
    raise TypeError(f"a {type(field).__name__} can't be a value of a tuple")


def _from_json(struct: dict[str, Any]) -> Any:
    if len(struct) == 1:
        [(name, content)] = struct.items()
        if name in _TYPES:
            return _TYPES[name][2](content)
        if name.startswith("$$"):
            return {name[1:]: content}
    return struct


_TYPES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    # A time that Python can't represent; Arrow interprets the number as that time.
    "$number": (BeyondPython, lambda number: number.text, int),
    "$binary": (bytes, lambda content: base64.b64encode(content).decode(), base64.b64decode),
    "$timestamp": (datetime, datetime.isoformat, datetime.fromisoformat),
    "$date": (date, date.isoformat, date.fromisoformat),
    "$decimal": (Decimal, str, Decimal),
}
"""The types that JSON lacks, by their name in JSON: Python type, conversion to text, conversion from text."""
