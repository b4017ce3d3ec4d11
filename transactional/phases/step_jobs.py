"""A step of the commit phase as a job: what its tasks are given, and what the driver makes of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from transactional.errors import TransactionalError, TuplesLost, by_code
from transactional.execution.failing.failures import error_of, summed_up
from transactional.execution.stateful import overrides_rollback
from transactional.execution.step_work import Closing, StepExecutor, StepFailure, StepWork, TaskDone, TaskInput
from transactional.phases.changes import kinds_written
from transactional.phases.passing import Passing
from transactional.phases.split_rows import inputs_of, size_of
from transactional.ports import Partials
from transactional.ports.split import TaskState
from transactional.stateful import StatefulBolt
from transactional.topology.steps import Step
from transactional.topology.topology import Component


def run_as_job(
    step: Step, component: Component, passing: Passing, jobs: StepExecutor, needs_driver: Callable[[str], None]
) -> bool:
    """Run a step as a job, and write its state. False, and nothing is done, if only the driver can read the state.

    `needs_driver` is called with the reason if the step turns out not to be possible as a job; the attempt fails then.
    Raises `Fenced`, an `OperatingError`, or an exception of a bolt as `BoltFailed`.
    """
    attempt, state, part = passing.attempt, component.state, None
    if state is not None:
        part = state.for_tasks(attempt)
        if part is None:
            return False
    work = _work(step, component, passing, part)
    expected = passing.rows[component.id]
    done = _checked(work, component, sorted(jobs.run_step(work), key=lambda each: each.task), expected, needs_driver)
    for each in done:
        passing.take_items(each.items)
    if state is not None:
        state.put_parts(attempt, [each.written for each in done if each.written is not None])
    return True


def close_as_job(
    step: Step, component: Component, passing: Passing, jobs: StepExecutor, needs_driver: Callable[[str], None]
) -> bool:
    """Let tasks close the windows of an update, each those of its part of the keys; the state is not written. False,
    and nothing is done, if only the driver can read it. As `run_as_job`."""
    windows, state = component.update, component.state
    assert windows is not None
    assert state is not None
    attempt, facts = passing.attempt, passing.processed.facts_of(component.id)
    part, rows = state.for_tasks(attempt), windows.closing(facts)
    if part is None or rows is None:
        return part is not None
    order, closer = windows.window_key if step.in_order else (), windows.closer()
    assert closer is not None
    inputs, closing = tuple(TaskInput(task, ()) for task in range(step.tasks)), Closing(*rows, closer, order)
    work = StepWork(attempt, component.id, step.tasks, step.split_by, part, inputs, facts=facts, closing=closing)
    answers = sorted(jobs.run_step(work), key=lambda each: each.task)
    # All have read the same rows, and each has kept some.
    for each in _checked(work, component, answers, max(each.of for each in answers), needs_driver):
        passing.take_items(each.items)
    return True


def change_as_job(
    step: Step, component: Component, passing: Passing, jobs: StepExecutor, needs_driver: Callable[[str], None]
) -> bool:
    """Let tasks combine the partial aggregates of an update that emits what it changes, each those of its keys, and
    write the state. False, and nothing is done, if only the driver can read it. As `run_as_job`."""
    state = component.state
    assert state is not None
    attempt, whole = passing.attempt, passing.processed.parts[component.id]
    assert isinstance(whole, Partials)
    part = state.for_tasks(attempt)
    if part is None:
        return False
    waiting = passing.partials_of(component.id)
    inputs = tuple(TaskInput(task, given) for task, given in enumerate(inputs_of(waiting, step.split_by, step.tasks)))
    work = StepWork(
        *(attempt, component.id, step.tasks, step.split_by, part, inputs),
        facts=passing.processed.facts,
        changes=True,
        in_order=step.in_order,
    )
    answers = sorted(jobs.run_step(work), key=lambda each: each.task)
    done = _checked(work, component, answers, size_of(waiting)[0], needs_driver)
    for each in done:
        passing.take_items(each.items)
    written = [each.written for each in done if each.written is not None]
    none = whole.table.slice(0, 0)
    rows = [each.rows.select(none.schema.names).cast(none.schema) for each in written if each.rows is not None]
    files = [each.file for each in written if each.file is not None]
    merged = Partials(kinds_written(whole.combine), pa.concat_tables([none, *rows]), files)
    state.merge(attempt, merged)
    passing.written[component.id] = merged.table.num_rows + sum(file.rows for file in files)
    return True


def _work(step: Step, component: Component, passing: Passing, part: TaskState | None) -> StepWork:
    processed, bolt, state = passing.processed, component.bolt, component.state
    instances = processed.parts.get(component.id, ())
    assert not isinstance(instances, Partials)
    inputs = tuple(
        TaskInput(
            task,
            tuple(passing.inbox.pop((component.id, task), ())),
            instances[task] if instances else None,
        )
        for task in range(component.parallelism)
    )
    asks = isinstance(bolt, StatefulBolt) and overrides_rollback(bolt)
    replaces = state is not None and asks and state.is_replay(passing.attempt)
    excluded = tuple(processed.excluded)
    facts = processed.facts
    return StepWork(passing.attempt, component.id, step.tasks, step.split_by, part, inputs, replaces, excluded, facts)


def _checked(
    work: StepWork,
    component: Component,
    done: Sequence[TaskDone],
    expected: int,
    needs_driver: Callable[[str], None],
) -> Sequence[TaskDone]:
    """Every task has answered once, none has failed, and nothing was lost on the way."""
    failures = [each.failure for each in done if each.failure is not None]
    if failures:
        for stays in (failure.stays for failure in failures if failure.stays):
            needs_driver(stays)
        raise _error(failures)
    if [each.task for each in done] != [given.task for given in work.inputs]:
        raise TuplesLost(
            f"{len(work.inputs)} tasks of {_in_words(component)} were to answer once each, {len(done)} have answered"
        )
    received = sum(each.received for each in done)
    if received != expected:
        what = "tuples that were sent to them" if work.closing is None else "rows whose windows they close"
        raise TuplesLost(f"the tasks of {_in_words(component)} have received {received} of {expected} {what}")
    return done


def _in_words(component: Component) -> str:
    """A step, with the table that it writes."""
    state = component.state
    named = "" if state is None else f", which writes the state {state.table}"
    return f"step {component.id!r}{named}"


def _error(failures: Sequence[StepFailure]) -> TransactionalError:
    """As in the driver: an error of the state is passed on unchanged, tuples are at fault only if all failures can be
    attributed to some."""
    first = next((failure for failure in failures if not failure.at_fault), failures[0])
    raised = None if first.is_own else by_code(first.code)
    if raised is not None:
        return raised(first.text)
    return error_of(first.code, *summed_up(first.text, [failure.at_fault for failure in failures]))
