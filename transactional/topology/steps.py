"""The steps of the commit phase: pure, known before anything runs.

A *step* is one component that finishes in the commit phase. Steps follow one another; the tasks of one step may run
side by side, as a Spark job, where no task can see what another one has written: that is so if each key of the state
belongs to one task, by the grouping. All other steps run on the driver, where the tasks of a component share its state.
"""

from __future__ import annotations

from dataclasses import dataclass

from transactional.core.ports import STAGEABLE, PersistentAggregate, UpdateKind
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.schema import Schema
from transactional.topology.bolts.bolts import Bolt
from transactional.topology.bolts.stateful import StatefulBolt
from transactional.topology.topology import CLOSED, Component, Topology, WorkPhase


@dataclass(frozen=True, slots=True)
class Step:
    """One component in the commit phase.

    `driver_reason` says why the step always runs on the driver. If it is empty, the step may run as a Spark job, whose
    tasks each have some of the keys: keys are split by `split_by`, columns of the state's key, which are empty for a
    bolt without a state. With `splits_partials` the step is a state's update that emits its changes, and its tasks
    combine the partial aggregates of their keys. With `in_order` a subscriber may depend on the order of keys.
    """

    component: str
    tasks: int
    split_by: tuple[str, ...] = ()
    driver_reason: str = ""
    splits_partials: bool = False
    in_order: bool = False

    def __str__(self) -> str:
        if self.driver_reason:
            return f"in the driver: {self.driver_reason}"
        split = f", its keys split by ({', '.join(self.split_by)})" if self.split_by else ""
        return f"in the driver, or as a job of {self.tasks} tasks{split}: by measured cost"


def plan_steps(topology: Topology) -> tuple[Step, ...]:
    """Return the steps of the commit phase of a topology, in order."""
    phases = topology.phases()
    late = [component for component in topology.components if phases[component.id] is WorkPhase.COMMIT]
    return tuple(_plan_step(topology, component) for component in late)


def _plan_step(topology: Topology, component: Component) -> Step:
    if component.update is not None and CLOSED in read_streams(component):
        return _closing_step(topology, component, component.update)
    if component.is_update and read_streams(component):
        return _changing_step(topology, component)
    driver_reason = _reason_for_driver(topology, component)
    split_by = () if driver_reason or component.state is None else component.inputs[0].fields
    return Step(component.id, component.parallelism, split_by, driver_reason)


def read_streams(component: Component) -> tuple[str, ...]:
    """Return the streams of a state's update that some component reads."""
    return tuple(stream for stream, fields in component.outputs.items() if fields)


def _closing_step(topology: Topology, component: Component, update: PersistentAggregate) -> Step:
    """Plan the step of an update that closes windows.

    As many tasks as fill the windows read them, make the closed windows, and pass them on. The driver writes the state,
    from what those tasks have staged.
    """
    tasks = _partial_tasks(topology, component)
    driver_reason, split_by = "", update.split_by
    if read_streams(component) != (CLOSED,):
        driver_reason = "it emits what it changes"
    elif update.update_kind is UpdateKind.REPLACED:
        driver_reason = "its windows depend on one another"
    elif not split_by:
        driver_reason = "its windows have no key"
    elif tasks == 1:
        driver_reason = "it has one task"
    elif component.state is None or not component.state.parts.tasks.serves_tasks:
        driver_reason = "its state can be read in the driver only"
    in_order = bool(update.window_key) and any(
        _depends_on_order(subscriber) and not _has_row_per_window(subscriber, update.window_key)
        for subscriber in topology.subscribers(component.id)
    )
    return Step(component.id, tasks, () if driver_reason else split_by, driver_reason, in_order=in_order)


def _changing_step(topology: Topology, component: Component) -> Step:
    """Plan the step of an update that emits its changes.

    Partial aggregates are split by key among as many tasks as make them, combined, and emitted as changes.
    """
    assert component.state is not None
    assert component.update is not None
    tasks, driver_reason = _partial_tasks(topology, component), ""
    if component.update.update_kind is UpdateKind.REPLACED:
        driver_reason = "its windows depend on one another"
    elif not component.state.parts.tasks.serves_tasks:
        driver_reason = "its state can be read in the driver only"
    elif not component.state.key.names:
        driver_reason = "its state has no key"
    elif tasks == 1:
        driver_reason = "it has one task"
    split_by = () if driver_reason else tuple(component.state.key.names)
    in_order = not driver_reason and any(map(_depends_on_order, topology.subscribers(component.id)))
    return Step(component.id, tasks, split_by, driver_reason, splits_partials=not driver_reason, in_order=in_order)


def _depends_on_order(component: Component) -> bool:
    """Return whether the order of tuples may matter to a component. It does not to a state that adds them up."""
    if component.update is None:
        return True
    return not set(component.update.aggregator().combine_kinds.values()) <= STAGEABLE


def _has_row_per_window(component: Component, window_key: tuple[str, ...]) -> bool:
    """Return whether a component is an update that never gets two windows with the same key."""
    return component.is_update and component.state is not None and set(window_key) <= set(component.state.key.names)


def _partial_tasks(topology: Topology, component: Component) -> int:
    """Return the number of tasks that make the partial aggregates of an update."""
    sources = {grouping.source for grouping in component.inputs}
    tasks = [source.parallelism for source in topology.components if source.id in sources]
    return max(component.parallelism, *(tasks or [topology.spout_parallelism]))


def _reason_for_driver(topology: Topology, component: Component) -> str:
    """Return why a component has to run on the driver, or an empty text if it need not."""
    if not isinstance(component.bolt, Bolt):
        return "it has no code with a state" if component.is_update else "it is a function"
    if component.sink is not None:
        return "its records go into the outbox"
    if component.reads:
        return "it looks up states"
    if component.parallelism == 1:
        return "it has one task"
    if component.state is None:
        return ""
    if not component.state.parts.tasks.serves_tasks:
        return "its state can be read in the driver only"
    if isinstance(component.bolt, StatefulBolt) and type(component.bolt).pre_commit is not StatefulBolt.pre_commit:
        return "it has pre_commit, which is called when all states are written"
    return _why_not_split(topology, component, component.state.key)


def _why_not_split(topology: Topology, component: Component, key: Schema) -> str:
    """Return why the inputs do not put each key of the state into one task, or an empty text if they do."""
    fields = component.inputs[0].fields
    if any(grouping.kind is not GroupingKind.FIELDS or grouping.fields != fields for grouping in component.inputs):
        return "its inputs are not all grouped by the same fields"
    exactly = component.is_stateful
    if not set(fields) <= set(key.names) or (exactly and set(fields) != set(key.names)):
        grouped, key_fields = ", ".join(fields), ", ".join(key.names)
        return f"it is grouped by ({grouped}), and the key of its state is ({key_fields})"
    different = [
        field for grouping in component.inputs for field in fields if not _has_same_type(topology, grouping, field, key)
    ]
    return f"its field {different[0]!r} has another type than the key of its state" if different else ""


def _has_same_type(topology: Topology, grouping: Grouping, field: str, key: Schema) -> bool:
    return topology.output_of(grouping.source, grouping.stream)[field].type == key[field].type
