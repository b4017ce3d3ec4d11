"""`check_state`: whether a state of a user's own keeps what every state promises."""

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
    """Try whether a state keeps what every state promises, and raise an `AssertionError` if it does not: it names the
    case, what was done, what was expected, and what came.

    `make` makes a state that is not opened, of four arguments: the name of its table, letters, digits and underscores;
    the DDL of its key, or () if the state is to have one row; the DDL of its values; and its `StateKind`. It is called
    with a new name for each new table, and with one that it knows for another writer of the same table.

    `cases` are names out of `STATE_CASES`; without any all are tried, which takes seconds. `break_write` lets the next
    write of a state that is open raise in its middle, after some of its rows and before its version; without it that
    is not tried.

    A state may refuse what it has not, with a `ConfigError`: types and names of columns, a kind, deletes, expiry,
    aggregates, readers, tasks, going back. Returned are the cases that were passed over for that, each with the
    state's words: compare them with what you expect, and nothing is passed over unseen.
    """
    refused, broken = dict[str, str](), dict[str, AssertionError]()
    for name in cases or CASES:
        try:
            reason = _refusal_in(name, make, break_write)
        except AssertionError as error:
            broken[name] = error
        else:
            refused |= {} if reason is None else {name: reason}
    if broken:
        first, *others = broken
        also = f"\nOther cases that fail: {', '.join(others)}" if others else ""
        raise AssertionError(f"{broken[first]}{also}") from broken[first].__cause__
    return refused


def _refusal_in(name: str, make: StateFactory, break_write: Callable[[State], None] | None) -> str | None:
    """Why the state refuses what a case is about; None: it has passed it."""
    if name not in CASES:
        raise ConfigError(f"there is no case {name!r} of a state: transactional.testing.STATE_CASES has them all")
    trial = Trial(make, f"t{next(_NUMBERS)}_{''.join(filter(str.isalpha, name)).lower()[:40]}", break_write)
    try:
        with _explaining(name, trial):
            CASES[name].run(trial)
    except NotOffered as refusal:
        return str(refusal)
    finally:
        trial.close()
    return None


@contextmanager
def _explaining(name: str, trial: Trial) -> Iterator[None]:
    """What goes wrong in a case, as one message."""
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
