"""Runs of cases: all that fail are named, and the message of the first has its steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from transactional.model.errors import ConfigError
from transactional.testing.cases.register import Case, NotOffered, Steps, TrialType

_NUMBERS: Final = itertools.count(1)


def run_cases(
    subject: str,
    cases: Mapping[str, Case[TrialType]],
    selected: Sequence[str],
    make_trial: Callable[[str], TrialType],
) -> dict[str, str]:
    """Run the selected cases, or all. Return the reasons of features that are not offered, by case.

    `make_trial` gets a name of letters, digits and underscores that no other trial has. `subject` is what is under
    test, in one word. Raises an `AssertionError` for cases that fail, and `ConfigError` for one that does not exist.
    """
    refused, broken = dict[str, str](), dict[str, AssertionError]()
    for name in selected or cases:
        if name not in cases:
            constant = f"{subject.upper()}_CASES"
            raise ConfigError(
                f"there is no case {name!r} of a {subject}: transactional.testing.{constant} has them all"
            )
        trial = make_trial(f"t{next(_NUMBERS)}_{''.join(filter(str.isalpha, name)).lower()[:40]}")
        try:
            with _explain_errors(name, cases[name].promise, trial):
                cases[name].run(trial)
        except NotOffered as refusal:
            refused[name] = str(refusal)
        except AssertionError as error:
            broken[name] = error
        finally:
            trial.close()
    if broken:
        first, *further = broken
        further_text = f"\nOther cases that fail: {', '.join(further)}" if further else ""
        raise AssertionError(f"{broken[first]}{further_text}") from broken[first].__cause__
    return refused


@contextmanager
def _explain_errors(name: str, promise: str, trial: Steps) -> Iterator[None]:
    """Raise any error of a case as an `AssertionError` with the steps of the case in its message."""
    try:
        yield
    except NotOffered:
        raise
    except AssertionError as error:
        raise AssertionError(_message(name, promise, trial, str(error))) from error.__cause__
    except Exception as error:
        raise AssertionError(_message(name, promise, trial, f"Expected: no error\nCame: {error!r}")) from error


def _message(name: str, promise: str, trial: Steps, outcome: str) -> str:
    steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(trial.steps, start=1))
    return f"case {name}: {promise}\nDone:\n{steps}\n{outcome}"
