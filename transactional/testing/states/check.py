"""`check_state`, which tests whether a user's own state keeps the promises that every state makes."""

from __future__ import annotations

from collections.abc import Callable

from transactional.core.ports import State
from transactional.testing.cases.running import run_cases
from transactional.testing.states import CASES
from transactional.testing.states.trial import StateFactory, Trial


def check_state(make: StateFactory, *cases: str, break_write: Callable[[State], None] | None = None) -> dict[str, str]:
    """Test whether a state keeps the promises that every state makes.

    Raises an `AssertionError` if it does not, with the case, its steps, and the expected and actual outcome.

    `make` makes a state that is not opened, from four arguments: the name of its table, of letters, digits and
    underscores; the DDL of its key, or () if the state is to have one row; the DDL of its values; and its `StateKind`.
    It is called with a new name for each new table, and with an earlier name for another writer of the same table.

    `cases` are names out of `STATE_CASES`; without any all are tried, which takes seconds. `break_write` makes the next
    write of an open state raise in its middle, after some of its rows and before its version; without it such writes
    are not tried.

    A state may refuse features that it does not have, with a `ConfigError`: types and names of columns, a kind,
    deletes, expiry, aggregates, readers, tasks, rewinding. The cases of refused features are returned, each with the
    message of the error: compare them with the features that you expect, so that no case is skipped unnoticed.
    """
    return run_cases("state", CASES, cases, lambda table: Trial(make, table, break_write))
