"""What `transactional describe` shows: who reads from whom, how, and in which phase each bolt runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transactional.model.drawing.graph import STYLE, make_graph
from transactional.model.drawing.rows import draw_wide
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.schema import Schema
from transactional.topology.bolts.functions import BoltFunction
from transactional.topology.stages import StagePlan, plan_stages
from transactional.topology.steps import Step, plan_steps
from transactional.topology.topology import Component, Topology, WorkPhase, visible

_SHAPES = {WorkPhase.PROCESSING: ("[", "]"), WorkPhase.COMMIT: ("[[", "]]")}


def described(topology: Topology) -> dict[str, Any]:
    """The topology as JSON data. `stage` numbers the groups of components that share their Spark tasks; None: runs in
    the driver."""
    plan = plan_stages(topology)
    spout = {
        "id": topology.spout_id,
        "kind": topology.spout.kind,
        "parallelism": topology.spout_parallelism,
        "phase": WorkPhase.PROCESSING.value,
        "stage": 0,
        "inputs": [],
        "streams": _streams(topology.outputs_of(topology.spout_id)),
        "replays": "exactly" if topology.spout.replays_exactly else "as far as it can",
    }
    if parts := topology.spout.describe_parts(topology.spout_parallelism):
        spout["spouts"] = list(parts)
    steps = {step.component: step for step in plan_steps(topology)}
    bolts = [_component(component, plan, steps.get(component.id)) for component in topology.components]
    return {"topology": topology.id, "guarantee": topology.guarantee.value, "components": [spout, *bolts]}


def _component(component: Component, plan: StagePlan, step: Step | None) -> dict[str, Any]:
    stages = [stage.index for stage in plan.stages if component.id in stage.components]
    description = {
        "id": component.id,
        "kind": _kind(component),
        "parallelism": component.parallelism,
        "phase": plan.shown(component.id),
        "stage": stages[0] if stages else None,
        "inputs": [
            {"source": g.source, "stream": g.stream, "grouping": g.kind.value, "fields": list(g.fields)}
            for g in component.inputs
        ],
        "streams": _streams(component.outputs),
    }
    if component.reads:
        description["reads"] = list(component.reads)
    if shown := getattr(component.bolt, "steps_shown", ()):
        description["steps"] = list(shown)
    if step is not None:
        description["finishes"] = str(step)
    if component.state is not None:
        description["state"] = {"kind": component.state.kind.value, **component.state.identity()}
    return description


def _kind(component: Component) -> str:
    bolt = component.bolt
    if isinstance(bolt, BoltFunction):
        return f"function of a {bolt.kind.value}"
    return getattr(bolt, "kind", type(bolt).__name__)


def _streams(outputs: Mapping[str, Schema]) -> dict[str, str]:
    """Without what the framework itself adds."""
    streams = {stream: visible(schema) for stream, schema in outputs.items() if not stream.startswith("__")}
    return {stream: str(schema) for stream, schema in streams.items() if schema}


@dataclass(frozen=True, slots=True)
class Described:
    """A component in lines of text. `above` is the first component that it reads from; None: a spout's."""

    id: str
    above: str | None
    lines: tuple[str, ...]


def in_lines(topology: Topology) -> list[Described]:
    """The components of a topology, each after those that it reads from."""
    movable = {step.component for step in plan_steps(topology) if not step.driver_reason}
    return [_in_lines(each, can_move=each["id"] in movable) for each in described(topology)["components"]]


def _in_lines(component: dict[str, Any], *, can_move: bool) -> Described:
    phase = component["phase"] + (" (driver or job)" if can_move else "")
    inputs, state = component["inputs"], component.get("state")
    lines = [
        f"{component['id']}: {component['kind']}, {_tasks(component)}, {phase}",
        *(f"reads  {each['id']}: {each['kind']}, {_tasks(each)}" for each in component.get("spouts", ())),
        *(f"does   {step}" for step in component.get("steps", ())),
        *(f"reads  {_grouping(each)} {each['source']}{_of_stream(each['stream'])}" for each in inputs),
        *(f"emits  {schema}{_of_stream(stream)}" for stream, schema in component["streams"].items()),
        *(() if state is None else (f"state  {state['kind']}",)),
    ]
    return Described(component["id"], inputs[0]["source"] if inputs else None, tuple(lines))


def _tasks(given: Mapping[str, Any]) -> str:
    return f"{given['parallelism']} task{'' if given['parallelism'] == 1 else 's'}"


def _grouping(given: dict[str, Any]) -> str:
    fields = f"({', '.join(given['fields'])})" if given["fields"] else ""
    return f"{given['grouping']}{fields} of"


def _of_stream(stream: str) -> str:
    return "" if stream == "default" else f" / {stream}"


def notebook_view(topology: Topology) -> dict[str, str]:
    """What a notebook shows: the graph, and the components as text."""
    return {
        "image/svg+xml": draw_wide(make_graph(described(topology)), style=STYLE),
        "text/plain": "\n".join([topology.id, *_indented(in_lines(topology), None, 1)]),
    }


def _indented(components: Sequence[Described], above: str | None, depth: int) -> Iterator[str]:
    """Components below the one that they read from, and so on."""
    for each in components:
        if each.above == above:
            first, *others = each.lines
            yield f"{'  ' * depth}{first}"
            yield from (f"{'  ' * depth}    {line}" for line in others)
            yield from _indented(components, each.id, depth + 1)


def as_mermaid(topology: Topology) -> str:
    """The topology as a Mermaid flowchart: committers and bolts behind them are framed as the commit phase."""
    plan = plan_stages(topology)
    numbers = {name: f"n{i}" for i, name in enumerate([topology.spout_id, *(c.id for c in topology.components)])}
    spouts = [str(each["id"]) for each in topology.spout.describe_parts(topology.spout_parallelism)]
    others = {(topology.spout_id, name): f"s{number}" for number, name in enumerate(spouts[1:], 1)}
    lines = ["flowchart LR", f"    {numbers[topology.spout_id]}([{topology.spout_id}])"]
    lines += [f"    {number}([{name}])" for (_, name), number in others.items()]
    for component in topology.components:
        opening, closing = _SHAPES[plan.phases[component.id]]
        text = f"{component.id} x{component.parallelism}<br>{plan.shown(component.id)}"
        lines.append(f'    {numbers[component.id]}{opening}"{text}"{closing}')
    for component in topology.components:
        for grouping in component.inputs:
            spout = others.get((grouping.source, grouping.stream))
            shown = replace(grouping, stream=DEFAULT_STREAM) if spout else grouping
            lines.append(f'    {spout or numbers[grouping.source]} -->|"{shown}"| {numbers[component.id]}')
    return "\n".join(lines)
