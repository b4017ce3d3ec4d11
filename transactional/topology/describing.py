"""The descriptions of a topology: as JSON for `transactional describe`, as lines of text, and as a Mermaid flowchart.

They show which component reads from which, by which grouping, and in which phase each bolt runs. Hidden streams and
fields of the framework are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transactional.model.drawing.graph import STYLE, make_graph
from transactional.model.drawing.rows import draw_wide
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import read_identity
from transactional.topology.bolts.functions import BoltFunction
from transactional.topology.stages import StagePlan, plan_stages
from transactional.topology.steps import Step, plan_steps
from transactional.topology.topology import Component, Topology, WorkPhase, visible_fields

_SHAPES = {WorkPhase.PROCESSING: ("[", "]"), WorkPhase.COMMIT: ("[[", "]]")}


def describe_topology(topology: Topology) -> dict[str, Any]:
    """Return the topology as JSON data.

    `stage` is the number of a group of components that share their Spark tasks; None if a component runs on the driver.
    """
    plan = plan_stages(topology)
    streams = topology.spout.parts.streams
    spout: dict[str, Any] = {
        "id": topology.spout_id,
        "kind": streams.kind,
        "parallelism": topology.spout_parallelism,
        "phase": WorkPhase.PROCESSING.value,
        "stage": 0,
        "inputs": [],
        "streams": _streams(topology.outputs_of(topology.spout_id)),
        "replays": "exactly" if topology.spout.replays_exactly else "as far as it can",
    }
    if streams.sources:
        spout["spouts"] = [
            {"id": source.id, "kind": source.kind, "parallelism": source.tasks or topology.spout_parallelism}
            for source in streams.sources
        ]
    steps = {step.component: step for step in plan_steps(topology)}
    bolts = [_describe_component(component, plan, steps.get(component.id)) for component in topology.components]
    return {"topology": topology.id, "guarantee": topology.guarantee.value, "components": [spout, *bolts]}


def _describe_component(component: Component, plan: StagePlan, step: Step | None) -> dict[str, Any]:
    stages = [stage.index for stage in plan.stages if component.id in stage.components]
    description = {
        "id": component.id,
        "kind": _bolt_kind(component),
        "parallelism": component.parallelism,
        "phase": plan.phase_text(component.id),
        "stage": stages[0] if stages else None,
        "inputs": [
            {"source": g.source, "stream": g.stream, "grouping": g.kind.value, "fields": list(g.fields)}
            for g in component.inputs
        ],
        "streams": _streams(component.outputs),
    }
    if component.reads:
        description["reads"] = list(component.reads)
    if step_labels := getattr(component.bolt, "steps_shown", ()):
        description["steps"] = list(step_labels)
    if step is not None:
        description["finishes"] = str(step)
    if component.state is not None:
        description["state"] = {"kind": component.state.parts.declared.kind.value, **read_identity(component.state)}
    return description


def _bolt_kind(component: Component) -> str:
    bolt = component.bolt
    if isinstance(bolt, BoltFunction):
        return f"function of a {bolt.kind.value}"
    return getattr(bolt, "kind", type(bolt).__name__)


def _streams(outputs: Mapping[str, Schema]) -> dict[str, str]:
    """Return the fields of each stream, without those that the framework adds."""
    streams = {stream: visible_fields(schema) for stream, schema in outputs.items() if not stream.startswith("__")}
    return {stream: str(schema) for stream, schema in streams.items() if schema}


@dataclass(frozen=True, slots=True)
class ComponentLines:
    """A component in lines of text. `above` is the first component that it reads from, None for a spout."""

    id: str
    above: str | None
    lines: tuple[str, ...]


def describe_in_lines(topology: Topology) -> list[ComponentLines]:
    """Return the components of a topology as text, each after those that it reads from."""
    movable = {step.component for step in plan_steps(topology) if not step.driver_reason}
    return [
        _component_lines(component, can_move=component["id"] in movable)
        for component in describe_topology(topology)["components"]
    ]


def _component_lines(component: dict[str, Any], *, can_move: bool) -> ComponentLines:
    phase = component["phase"] + (" (driver or job)" if can_move else "")
    inputs, state = component["inputs"], component.get("state")
    lines = [
        f"{component['id']}: {component['kind']}, {_task_count(component)}, {phase}",
        *(f"reads  {entry['id']}: {entry['kind']}, {_task_count(entry)}" for entry in component.get("spouts", ())),
        *(f"does   {step}" for step in component.get("steps", ())),
        *(f"reads  {_grouping_text(entry)} {entry['source']}{_stream_suffix(entry['stream'])}" for entry in inputs),
        *(f"emits  {schema}{_stream_suffix(stream)}" for stream, schema in component["streams"].items()),
        *(() if state is None else (f"state  {state['kind']}",)),
    ]
    return ComponentLines(component["id"], inputs[0]["source"] if inputs else None, tuple(lines))


def _task_count(component: Mapping[str, Any]) -> str:
    return f"{component['parallelism']} task{'' if component['parallelism'] == 1 else 's'}"


def _grouping_text(input_: dict[str, Any]) -> str:
    fields = f"({', '.join(input_['fields'])})" if input_["fields"] else ""
    return f"{input_['grouping']}{fields} of"


def _stream_suffix(stream: str) -> str:
    return "" if stream == "default" else f" / {stream}"


def notebook_view(topology: Topology) -> dict[str, str]:
    """Return what a notebook shows, by content type: the graph, and the components as text."""
    return {
        "image/svg+xml": draw_wide(make_graph(describe_topology(topology)), style=STYLE),
        "text/plain": "\n".join([topology.id, *_indent_lines(describe_in_lines(topology), None, 1)]),
    }


def _indent_lines(components: Sequence[ComponentLines], above: str | None, depth: int) -> Iterator[str]:
    """Yield the lines of the components that read from `above`, each with those below it."""
    for component in components:
        if component.above == above:
            first, *details = component.lines
            yield f"{'  ' * depth}{first}"
            yield from (f"{'  ' * depth}    {line}" for line in details)
            yield from _indent_lines(components, component.id, depth + 1)


def draw_mermaid(topology: Topology) -> str:
    """Return the topology as a Mermaid flowchart. Committers and the bolts behind them are framed as the commit
    phase."""
    plan = plan_stages(topology)
    numbers = {name: f"n{i}" for i, name in enumerate([topology.spout_id, *(c.id for c in topology.components)])}
    spouts = [source.id for source in topology.spout.parts.streams.sources]
    other_spouts = {(topology.spout_id, name): f"s{number}" for number, name in enumerate(spouts[1:], 1)}
    lines = ["flowchart LR", f"    {numbers[topology.spout_id]}([{topology.spout_id}])"]
    lines += [f"    {number}([{name}])" for (_, name), number in other_spouts.items()]
    for component in topology.components:
        opening, closing = _SHAPES[plan.phases[component.id]]
        text = f"{component.id} x{component.parallelism}<br>{plan.phase_text(component.id)}"
        lines.append(f'    {numbers[component.id]}{opening}"{text}"{closing}')
    for component in topology.components:
        for grouping in component.inputs:
            spout = other_spouts.get((grouping.source, grouping.stream))
            label = replace(grouping, stream=DEFAULT_STREAM) if spout else grouping
            lines.append(f'    {spout or numbers[grouping.source]} -->|"{label}"| {numbers[component.id]}')
    return "\n".join(lines)
