"""Dead letters on a page: which transactions have set tuples aside, from the store; the tuples, from their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from transactional.core.store import AttemptTimes
from transactional.core.store.rules import letters_in
from transactional.core.store.set_aside import RecentLetters
from transactional.model.drawing.formats import DASH, first_line
from transactional.model.errors import TransactionalError
from transactional.runtime.engine.letter_spout import all_letters
from transactional.topology.topology import Topology

LETTERS_MAX: Final = 200
TRANSACTIONS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class LettersTable:
    """The rows of the table of dead letters, newest first, at most `LETTERS_MAX`; or why they can't be shown."""

    rows: Sequence[Mapping[str, object]] = ()
    total: int = 0
    waiting: int = 0
    problem: str = ""


def count_letters_by_transaction(set_aside: RecentLetters) -> list[tuple[AttemptTimes, int, str]]:
    """Return the newest transactions with dead letters, each with their number, and the numbers by component."""
    newest = set_aside.attempts[:TRANSACTIONS_MAX]
    return [(attempt, letters_in(attempt.details), letters_by_component(attempt.details)) for attempt in newest]


def letters_by_component(details: Mapping[str, Any] | None) -> str:
    """Return the numbers of dead letters by component, as in `count 3, parse 1`; a dash if they were not recorded."""
    by_component = (details or {}).get("letters_of")
    if not isinstance(by_component, Mapping) or not by_component:
        return DASH
    return ", ".join(f"{component} {number}" for component, number in sorted(by_component.items()))


def read_letters_table(topology: Topology | None) -> LettersTable | None:
    """Read a topology's table of dead letters. None if its code is not known here, or it has no such table."""
    if topology is None or topology.dead_letters is None:
        return None
    try:
        rows = all_letters(topology)
    except (TransactionalError, OSError, RuntimeError) as error:  # a table that is just being written in memory, too
        return LettersTable(problem=first_line(str(error)))
    waiting = sum(row["tried_again_in"] is None for row in rows)
    return LettersTable(rows[::-1][:LETTERS_MAX], len(rows), waiting)
