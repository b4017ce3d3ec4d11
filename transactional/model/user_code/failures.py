"""The failure of a task: an exception in user code becomes a `TaskFailed`, and that becomes an error in the driver.

`guarding` surrounds every call of user code in a task. The failure names the component, the place in the user's code
and, if possible, the tuples at fault, so that these can be set aside as dead letters. `make_error` makes the error that
the driver raises. An exception of user code must never pass as an error of the framework.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Protocol

from transactional.model.errors import (
    BatchLost,
    BoltFailed,
    FailedException,
    NaiveTime,
    OperatingError,
    SchemaUnknown,
    TableUnfit,
    TransactionalError,
    error_class_of,
)
from transactional.model.letters import Exclusion, merge_exclusions
from transactional.model.plumbing.tracebacks import describe_error, text_with_location, traceback_text


class Failure(Protocol):
    """The failure of a task, on whatever executor it ran."""

    @property
    def code(self) -> str:
        """The code of the error that the failure becomes in the driver."""

    @property
    def at_fault(self) -> tuple[Exclusion, ...]:
        """The tuples at fault, empty if the failure can't be attributed to tuples."""


def rank_failure(failure: Failure) -> tuple[bool, bool]:
    """Return the rank of a failure among those of an attempt, of which the lowest becomes the attempt's error.

    A failure that ends the run comes first, and a failure without tuples at fault comes before others.
    """
    return failure.code != NaiveTime.code, bool(failure.at_fault)


class TaskFailed(BaseException):
    """A task can't continue: carries the component and the code of the error to be raised in the driver.

    Not an `Exception`: a bolt that catches exceptions around `emit` must not swallow the failure of a bolt behind it.
    """

    def __init__(self, code: str, component: str, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.code, self.component, self.trace = code, component, trace
        self.location = ""
        """The tuple that was being processed, if known."""
        self.at_fault: tuple[Exclusion, ...] = ()
        """The tuples whose execution has failed, if the failure can be attributed to tuples."""
        self.is_of_many = False
        """True if several tuples were being processed at once, so that none of them can be identified as the cause."""

    def __str__(self) -> str:
        return f"{self.args[0]}{self.location}{self.trace}"


class guarding:  # noqa: N801 - reads as a statement: `with guarded("parse"):`
    """Converts any exception in user code to `TaskFailed`, with the component's name and the traceback."""

    def __init__(self, component: str, *, is_of_many: bool = False) -> None:
        self.component, self.is_of_many = component, is_of_many

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, TaskFailed):
            return
        code, text_of_trace = BoltFailed.code, ""
        text = f"component {self.component!r} raised {describe_error(error)}"
        if isinstance(error, TransactionalError):
            code, text = error.code, text_with_location(error) if repr(self.component) in str(error) else text
        else:
            text_of_trace = f"\n{traceback_text(error)}"
        failure = TaskFailed(code, self.component, text, text_of_trace)
        failure.is_of_many = self.is_of_many
        if isinstance(error, SchemaUnknown):  # the spout's reader does not know the spout's id
            failure.at_fault = tuple(replace(exclusion, component=self.component) for exclusion in error.at_fault)
        raise failure from error


def make_error(code: str, text: str, at_fault: tuple[Exclusion, ...] = ()) -> TransactionalError:
    """Return the error that a failed task represents.

    An `OperatingError`, a `FailedException`, and errors that no other attempt can avoid keep their class. Any other
    error becomes a `BoltFailed`.
    """
    error_class = error_class_of(code)
    if error_class is None or not issubclass(
        error_class, OperatingError | FailedException | NaiveTime | BatchLost | TableUnfit
    ):
        error_class = BoltFailed
    return error_class(text, at_fault=at_fault)


def sum_up_failures(text: str, faults: Iterable[tuple[Exclusion, ...]]) -> tuple[str, tuple[Exclusion, ...]]:
    """Return the text for several failures, made from the first one's, and the tuples at fault.

    There are none if one of the failures can't be attributed to a tuple, because it may be the cause of the others.
    """
    faults_by_failure = list(faults)
    at_fault = merge_exclusions(*faults_by_failure) if all(faults_by_failure) else ()
    return (f"{len(at_fault)} tuples failed, the first: {text}" if len(at_fault) > 1 else text), at_fault
