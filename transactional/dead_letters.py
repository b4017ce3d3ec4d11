"""Dead letters: tuples that were set aside because a bolt failed on them as often as was allowed. What a table of them
looks like, and its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transactional.attempt import TransactionAttempt
from transactional.bolts import Key
from transactional.errors import ConfigError
from transactional.ports import DeadLetter, TransactionState
from transactional.schema import Schema

DEAD_LETTERS = "dead-letters"
"""Stands for the table where its state is fenced and noted like that of a committer."""

LETTER_KEY = "transaction long, number long"
LETTER_VALUES = "component string, source string, stream string, tuple string, error string"
"""The tuple is JSON; source and stream tell where it came from, component and error where it ended."""


def check_dead_letters(state: TransactionState) -> None:
    """Raise `ConfigError` unless the state can hold dead letters."""
    if state.key != Schema.parse(LETTER_KEY) or state.values != Schema.parse(LETTER_VALUES):
        raise ConfigError(
            "set_dead_letters takes a DeadLetterTable('path/of/a/table'), or another state with "
            f"key='{LETTER_KEY}' and values='{LETTER_VALUES}'"
        )


def letter_rows(attempt: TransactionAttempt, letters: Sequence[DeadLetter]) -> dict[Key, tuple[Any, ...]]:
    """The letters of one transaction as rows: the same for every order in which they were met."""
    rows = sorted((x.exclusion.component, x.source, x.stream, x.tuple, x.exclusion.error) for x in letters)
    return {(attempt.txid, number): row for number, row in enumerate(rows)}
