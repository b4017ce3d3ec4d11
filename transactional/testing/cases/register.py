"""Cases of a contract, registered by name, and the steps of a case in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar


class NotOffered(Exception):
    """The object under test refuses the feature that a case is about, as it may."""


class BrokenPromise(AssertionError):
    """The object under test breaks a promise of its contract."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """The steps of a case so far, in words, so that the message of a failure shows how to repeat it."""

    steps: list[str] = field(default_factory=list)

    def note(self, step: str) -> None:
        """Note one more step, in words."""
        self.steps.append(step)

    def check_equal(self, subject: str, actual: object, expected: object) -> None:
        """Raise `BrokenPromise` unless a result is as expected. `subject` names it in the message."""
        if _comparable(actual) != _comparable(expected):
            raise BrokenPromise(f"Expected of {subject}: {expected!r}\nCame: {actual!r}")

    def expect_error(
        self, errors: type[Exception] | tuple[type[Exception], ...], act: Callable[[], object]
    ) -> Exception:
        """Return the error of `act`. Raise `BrokenPromise` unless it is one of these types."""
        names = " or ".join(error.__name__ for error in (errors if isinstance(errors, tuple) else (errors,)))
        try:
            act()
        except errors as error:
            return error
        except Exception as error:
            raise BrokenPromise(f"Expected: {names}\nCame: {error!r}") from error
        raise BrokenPromise(f"Expected: {names}\nCame: no error")

    def close(self) -> None:
        """Close what the case has opened."""


TrialType = TypeVar("TrialType", bound=Steps)


@dataclass(frozen=True, slots=True)
class Case(Generic[TrialType]):
    """A promise of a contract, and the function that tests it."""

    promise: str
    run: Callable[[TrialType], None]
    module: str


@dataclass(frozen=True, slots=True)
class CaseRegister(Generic[TrialType]):
    """The cases of one contract, by name."""

    cases: dict[str, Case[TrialType]] = field(default_factory=dict)

    def case(self, function: Callable[[TrialType], None]) -> Callable[[TrialType], None]:
        """Register a case, whose docstring is the promise."""
        self.cases[function.__name__] = Case(_promise_of(function), function, function.__module__)
        return function

    def cases_for(
        self, values: Iterable[Any]
    ) -> Callable[[Callable[[TrialType, Any], None]], Callable[[TrialType, Any], None]]:
        """Register one case for each of these arguments. The name of a case ends with its argument."""

        def register(function: Callable[[TrialType, Any], None]) -> Callable[[TrialType, Any], None]:
            for argument in values:
                suffix = argument.value if isinstance(argument, Enum) else argument
                run = partial(_run_with, function, argument)
                self.cases[f"{function.__name__}({suffix})"] = Case(_promise_of(function), run, function.__module__)
            return function

        return register

    def in_order(self, modules: Sequence[ModuleType]) -> Mapping[str, Case[TrialType]]:
        """Return the cases by name, in the order of their modules."""
        return {name: case for module in modules for name, case in self.cases.items() if case.module == module.__name__}


def _run_with(function: Callable[[TrialType, Any], None], argument: Any, trial: TrialType) -> None:
    function(trial, argument)


def _promise_of(function: Callable[..., None]) -> str:
    return " ".join((function.__doc__ or function.__name__).split())


def _comparable(content: Any) -> Any:
    """Replace NaN, which is not equal to itself, by a word."""
    if isinstance(content, Mapping):
        return {key: _comparable(inner) for key, inner in content.items()}
    if isinstance(content, tuple | list):
        return [_comparable(inner) for inner in content]
    return "NaN" if isinstance(content, float) and content != content else content
