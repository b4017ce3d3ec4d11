"""What `transactional describe` shows: who reads from whom, how, and in which phase each bolt runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transactional.schema import Schema
from transactional.topology.functions import BoltFunction
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


def table_rows(topology: Topology) -> list[list[str]]:
    """A row per component: id, kind, parallelism, phase, inputs, what it emits, state."""
    movable = {step.component for step in plan_steps(topology) if not step.stays}
    rows = []
    for component in described(topology)["components"]:
        inputs = [f"{_grouping(i)} {i['source']}{_of_stream(i['stream'])}" for i in component["inputs"]]
        streams = [f"{schema}{_of_stream(stream)}" for stream, schema in component["streams"].items()]
        state = component.get("state", {})
        rows.append(
            [
                component["id"],
                "\n".join([component["kind"], *component.get("steps", ())]),
                str(component["parallelism"]),
                component["phase"] + ("\ndriver or job" if component["id"] in movable else ""),
                "\n".join(inputs),
                "\n".join(streams),
                state.get("kind", ""),
            ]
        )
    return rows


def _grouping(given: dict[str, Any]) -> str:
    fields = f"({', '.join(given['fields'])})" if given["fields"] else ""
    return f"{given['grouping']}{fields} of"


def _of_stream(stream: str) -> str:
    return "" if stream == "default" else f" / {stream}"


def as_mermaid(topology: Topology) -> str:
    """The topology as a Mermaid flowchart: committers and bolts behind them are framed as the commit phase."""
    plan = plan_stages(topology)
    numbers = {name: f"n{i}" for i, name in enumerate([topology.spout_id, *(c.id for c in topology.components)])}
    lines = ["flowchart LR", f"    {numbers[topology.spout_id]}([{topology.spout_id}])"]
    for component in topology.components:
        opening, closing = _SHAPES[plan.phases[component.id]]
        text = f"{component.id} x{component.parallelism}<br>{plan.shown(component.id)}"
        lines.append(f'    {numbers[component.id]}{opening}"{text}"{closing}')
    edges = [(grouping, component) for component in topology.components for grouping in component.inputs]
    lines += [f'    {numbers[grouping.source]} -->|"{grouping}"| {numbers[c.id]}' for grouping, c in edges]
    return "\n".join(lines)
