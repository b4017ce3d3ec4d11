"""How a task fails: an exception in user code, as `TaskFailed`; and the error that it becomes in the driver."""

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
    by_code,
)
from transactional.model.letters import Exclusion, merge_exclusions
from transactional.model.plumbing.tracebacks import raised, shown, traceback_text


class Failure(Protocol):
    """How a task has failed, wherever it ran."""

    @property
    def code(self) -> str:
        """The code of the error that it becomes."""

    @property
    def at_fault(self) -> tuple[Exclusion, ...]:
        """The tuples at fault, if it can be attributed to some."""


def rank_failure(failure: Failure) -> tuple[bool, bool]:
    """The place of a failure among several of one attempt, of which the first becomes its error: one that ends the run
    comes before others, and one that can't be attributed to tuples before those that can."""
    return failure.code != NaiveTime.code, bool(failure.at_fault)


class TaskFailed(BaseException):
    """A task can't continue: carries the component and the code of the error to be raised in the driver.

    Not an `Exception`: a bolt that catches exceptions around `emit` must not swallow the failure of a bolt behind it.
    """

    def __init__(self, code: str, component: str, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.code, self.component, self.trace = code, component, trace
        self.where = ""
        """The tuple that was being processed, if known."""
        self.at_fault: tuple[Exclusion, ...] = ()
        """The tuples whose execution has failed, if the failure can be attributed to tuples."""
        self.is_of_many = False
        """True if several tuples were being processed at once, so that none of them can be identified as the cause."""

    def __str__(self) -> str:
        return f"{self.args[0]}{self.where}{self.trace}"


class guarded:  # noqa: N801 - reads as a statement: `with guarded("parse"):`
    """Turns any exception in user code into `TaskFailed`, with the component's name and the traceback."""

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
        text = f"component {self.component!r} raised {raised(error)}"
        if isinstance(error, TransactionalError):
            code, text = error.code, shown(error) if repr(self.component) in str(error) else text
        else:
            text_of_trace = f"\n{traceback_text(error)}"
        failed = TaskFailed(code, self.component, text, text_of_trace)
        failed.is_of_many = self.is_of_many
        if isinstance(error, SchemaUnknown):  # what a spout's reader finds does not know the spout's id
            failed.at_fault = tuple(replace(each, component=self.component) for each in error.at_fault)
        raise failed from error


def error_of(code: str, text: str, at_fault: tuple[Exclusion, ...] = ()) -> TransactionalError:
    """The error that a failed task represents. An `OperatingError`, a `FailedException`, and what no other attempt can
    mend stay what they were."""
    raised = by_code(code)
    if raised is None or not issubclass(raised, OperatingError | FailedException | NaiveTime | BatchLost | TableUnfit):
        raised = BoltFailed
    return raised(text, at_fault=at_fault)


def summed_up(text: str, faults: Iterable[tuple[Exclusion, ...]]) -> tuple[str, tuple[Exclusion, ...]]:
    """The text of the first of several failures, and the tuples at fault: none if one failure can't be attributed to a
    tuple, because that may be the cause of the others."""
    parts = list(faults)
    at_fault = merge_exclusions(*parts) if all(parts) else ()
    return (f"{len(at_fault)} tuples failed, the first: {text}" if len(at_fault) > 1 else text), at_fault
