"""Finds the tuple of which a process dies, by bisection: halves of a bolt's last input are tried in other processes."""

from __future__ import annotations

from collections.abc import Callable

from transactional.model.arrow.batch_tuples import tuples
from transactional.model.errors import WorkerDied
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.tasks.failing.faults import Faults
from transactional.runtime.tasks.watching import BoltInput


def find_deadly_tuple(bolt_input: BoltInput, is_deadly: Callable[[BoltInput], bool]) -> BoltInput | None:
    """Return the input with only the tuple of which a process has died, or None if it takes several tuples.

    Of n tuples at most log2(n) + 1 processes die.
    """
    part = bolt_input
    while (count := part.rows.num_rows) > 1:
        first_half = part.part(0, count // 2)
        part = first_half if is_deadly(first_half) else part.part(count // 2, count)
    return part if count and is_deadly(part) else None


def error_naming(culprit: BoltInput, death: WorkerDied, spout: str) -> WorkerDied:
    """Return the error that names a tuple of which a process dies."""
    text = f"component {culprit.component!r} ends its process, also where it is given one tuple alone: it {death.how}"
    faults, failed = Faults(spout), TaskFailed(WorkerDied.code, culprit.component, text)
    faults.name(failed, next(tuples(culprit.rows, culprit.source, culprit.stream)))
    return WorkerDied(str(failed), at_fault=faults.at_fault, how=death.how)
