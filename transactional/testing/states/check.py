"""`check_state`, which tests whether a user's own state keeps the promises that every state makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from transactional.core.ports import State
from transactional.model.errors import ConfigError
from transactional.testing.states import CASES
from transactional.testing.states.trial import NotOffered, StateFactory, Trial

_NUMBERS: Final = itertools.count(1)


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
    refused, broken = dict[str, str](), dict[str, AssertionError]()
    for name in cases or CASES:
        try:
            reason = _run_case(name, make, break_write)
        except AssertionError as error:
            broken[name] = error
        else:
            refused |= {} if reason is None else {name: reason}
    if broken:
        first, *further = broken
        further_text = f"\nOther cases that fail: {', '.join(further)}" if further else ""
        raise AssertionError(f"{broken[first]}{further_text}") from broken[first].__cause__
    return refused


def _run_case(name: str, make: StateFactory, break_write: Callable[[State], None] | None) -> str | None:
    """Run a case. Return the state's reason if it does not offer the feature, or None if it has passed the case."""
    if name not in CASES:
        raise ConfigError(f"there is no case {name!r} of a state: transactional.testing.STATE_CASES has them all")
    trial = Trial(make, f"t{next(_NUMBERS)}_{''.join(filter(str.isalpha, name)).lower()[:40]}", break_write)
    try:
        with _explain_errors(name, trial):
            CASES[name].run(trial)
    except NotOffered as refusal:
        return str(refusal)
    finally:
        trial.close()
    return None


@contextmanager
def _explain_errors(name: str, trial: Trial) -> Iterator[None]:
    """Raise any error of a case as an `AssertionError` with the steps of the case in its message."""
    try:
        yield
    except NotOffered:
        raise
    except AssertionError as error:
        raise AssertionError(_message(name, trial, str(error))) from error.__cause__
    except Exception as error:
        raise AssertionError(_message(name, trial, f"Expected: no error\nCame: {error!r}")) from error


def _message(name: str, trial: Trial, outcome: str) -> str:
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(trial.steps, start=1))
    return f"case {name}: {CASES[name].promise}\nDone:\n{steps}\n{outcome}"
