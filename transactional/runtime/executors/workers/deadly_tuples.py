"""Finds the tuple of which a process dies, by halves of what a bolt was given last: each is tried in a process."""

from __future__ import annotations

from collections.abc import Callable

from transactional.model.arrow.batch_tuples import tuples
from transactional.model.errors import WorkerDied
from transactional.model.user_code.failures import TaskFailed
from transactional.runtime.tasks.failing.faults import Faults
from transactional.runtime.tasks.watching import BoltInput


def deadly_tuple(given: BoltInput, dies: Callable[[BoltInput], bool]) -> BoltInput | None:
    """The input with one tuple alone, of which a process has died; None if a process only dies of several together.

    Of n tuples at most log2(n) + 1 processes die.
    """
    part = given
    while (count := part.rows.num_rows) > 1:
        first_half = part.part(0, count // 2)
        part = first_half if dies(first_half) else part.part(count // 2, count)
    return part if count and dies(part) else None


def naming(alone: BoltInput, died: WorkerDied, spout: str) -> WorkerDied:
    """The error that names a tuple of which a process dies."""
    text = f"component {alone.component!r} ends its process, also where it is given one tuple alone: it {died.how}"
    faults, failed = Faults(spout), TaskFailed(WorkerDied.code, alone.component, text)
    faults.name(failed, next(tuples(alone.rows, alone.source, alone.stream)))
    return WorkerDied(str(failed), at_fault=faults.at_fault, how=died.how)
