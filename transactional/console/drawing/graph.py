"""The topology as a picture: a column per step from the spout, lines as thick as what flows on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.console.data.formats import short_count
from transactional.console.drawing import svg

NODE_WIDTH: Final = 176.0
NODE_HEIGHT: Final = 56.0
_COLUMN: Final = NODE_WIDTH + 128
_ROW: Final = NODE_HEIGHT + 40
_MARGIN: Final = 10.0
COMPONENTS_MAX: Final = 30
"""With more than these a picture is of no use: the page shows a table."""

_KINDS: Final = {"processing": "processing", "processing + commit": "both", "commit": "commit"}


@dataclass(frozen=True, slots=True)
class Node:
    """A component, as `described` returns it."""

    id: str
    kind: str
    parallelism: int
    phase: str
    state: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A subscription. `tuples` is the mean per transaction, if it is known."""

    source: str
    target: str
    stream: str
    grouping: str
    tuples: float | None = None


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology's components, the spout first, and their subscriptions."""

    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether a picture of it can be read."""
        return 0 < len(self.nodes) <= COMPONENTS_MAX


@dataclass(slots=True)
class _Layout:
    column: dict[str, int] = field(default_factory=dict)
    row: dict[str, float] = field(default_factory=dict)

    def place(self, node_id: str) -> tuple[float, float]:
        """The upper left corner of a node."""
        return _MARGIN + self.column[node_id] * _COLUMN, _MARGIN + self.row[node_id] * _ROW


def graph_of(described: Mapping[str, Any], tuples: Mapping[tuple[str, str, str], float] | None = None) -> Graph:
    """The graph of a topology that a run has described; empty if it has not. `tuples` by source, stream and target."""
    components = described.get("components", ())
    nodes = [
        Node(
            str(c["id"]),
            str(c["kind"]),
            int(c["parallelism"]),
            str(c["phase"]),
            str(c.get("state", {}).get("kind", "")),
        )
        for c in components
    ]
    known = {node.id for node in nodes}
    edges = [
        Edge(
            str(i["source"]),
            str(c["id"]),
            str(i["stream"]),
            f"{i['grouping']}({', '.join(map(str, i['fields']))})" if i["fields"] else str(i["grouping"]),
            (tuples or {}).get((str(i["source"]), str(i["stream"]), str(c["id"]))),
        )
        for c in components
        for i in c["inputs"]
        if i["source"] in known
    ]
    return Graph(nodes, edges)


def _layout(graph: Graph) -> _Layout:
    """Column: the longest path from the spout. Row: near the mean of its sources, as far as the column has room."""
    layout = _Layout()
    sources = {node.id: [edge.source for edge in graph.edges if edge.target == node.id] for node in graph.nodes}
    for node in graph.nodes:  # each after those that it reads from
        layout.column[node.id] = max(
            (layout.column[each] + 1 for each in sources[node.id] if each in layout.column), default=0
        )
    for column in range(max(layout.column.values()) + 1):
        there = [node.id for node in graph.nodes if layout.column[node.id] == column]
        _fill_column(layout, there, sources)
    highest = min(layout.row.values())
    layout.row = {name: row - highest for name, row in layout.row.items()}
    return layout


def _fill_column(layout: _Layout, there: Sequence[str], sources: Mapping[str, Sequence[str]]) -> None:
    def wanted(name: str) -> float:
        rows = [layout.row[each] for each in sources[name] if each in layout.row]
        return sum(rows) / len(rows) if rows else 0.0

    ordered = sorted(there, key=wanted)
    centre = sum(map(wanted, ordered)) / len(ordered)
    for place, name in enumerate(ordered):
        layout.row[name] = centre + place - (len(ordered) - 1) / 2


def draw_graph(graph: Graph) -> str:
    """The picture."""
    layout = _layout(graph)
    most = max((edge.tuples or 0 for edge in graph.edges), default=0)
    lines = [_edge(layout, edge, most, _share(graph, edge)) for edge in graph.edges]
    boxes = [_node(layout, node) for node in graph.nodes]
    width = 2 * _MARGIN + max(layout.column.values()) * _COLUMN + NODE_WIDTH
    below = 56 if any(_skips(layout, edge) for edge in graph.edges) else 0
    height = 2 * _MARGIN + max(layout.row.values()) * _ROW + NODE_HEIGHT + below
    told = ", ".join(f"{edge.source} to {edge.target}" for edge in graph.edges)
    return svg.picture(width, height, f"Topology: {told or graph.nodes[0].id}", *lines, *boxes, class_="graph")


def _skips(layout: _Layout, edge: Edge) -> bool:
    return layout.column[edge.target] - layout.column[edge.source] > 1


def _node(layout: _Layout, node: Node) -> str:
    x, y = layout.place(node.id)
    kind = _KINDS.get(node.phase, "processing")
    lower = f"{node.kind}{' · ' + node.state if node.state else ''}"
    return svg.element(
        "g",
        svg.title(
            f"{node.id}: {node.kind}, {node.parallelism} tasks, {node.phase}{', ' + node.state if node.state else ''}"
        ),
        svg.element("rect", class_="node", x=x, y=y, rx=9, width=NODE_WIDTH, height=NODE_HEIGHT),
        svg.element("rect", class_=f"accent {kind}", x=x + 9, y=y + 11, rx=2, width=4, height=NODE_HEIGHT - 22),
        svg.text(svg.shortened(node.id, NODE_WIDTH - 66), x + 22, y + 24, class_="name"),
        svg.text(f"\u00d7{node.parallelism}", x + NODE_WIDTH - 12, y + 24, class_="par", text_anchor="end"),
        svg.text(svg.shortened(lower, NODE_WIDTH - 40), x + 22, y + 42, class_="kind"),
    )


def _share(graph: Graph, edge: Edge) -> float:
    """How far along an edge its label stands: where several part or meet, away from the others' labels."""
    if sum(each.source == edge.source for each in graph.edges) > 1:
        return 0.68
    return 0.32 if sum(each.target == edge.target for each in graph.edges) > 1 else 0.5


def _edge(layout: _Layout, edge: Edge, most: float, share: float) -> str:
    x1, y1 = layout.place(edge.source)
    x2, y2 = layout.place(edge.target)
    x1, y1, y2 = x1 + NODE_WIDTH, y1 + NODE_HEIGHT / 2, y2 + NODE_HEIGHT / 2
    dip = 80.0 if _skips(layout, edge) else 0.0
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1 + dip:.1f} {x2 - bend:.1f} {y2 + dip:.1f} {x2:.1f} {y2:.1f}"
    width = 1.5 + (4.5 * (edge.tuples or 0) / most if most else 0)
    stream = "" if edge.stream == "default" else f" / {edge.stream}"
    if dip:
        share = 0.5
    rest = 1 - share
    middle = 3 * rest * share  # both inner points of the curve are in the middle between its ends
    lx = rest**3 * x1 + middle * (x1 + x2) / 2 + share**3 * x2
    ly = (rest**3 + middle * rest) * y1 + (middle * share + share**3) * y2 + middle * dip
    parts = [
        svg.title(f"{edge.source} → {edge.target}: {edge.grouping}{stream}"),
        svg.element("path", class_="edge", d=path, stroke_width=width),
        svg.element("circle", class_="port", cx=x2, cy=y2, r=3.5),
        svg.text(
            svg.shortened(edge.grouping + stream, 108),
            lx,
            ly + (16 if dip else -8 - width / 2),
            class_="label",
            text_anchor="middle",
        ),
    ]
    if edge.tuples is not None:
        parts.append(
            svg.text(
                short_count(edge.tuples),
                lx,
                ly + (-8 - width / 2 if dip else 15 + width / 2),
                class_="flow",
                text_anchor="middle",
            )
        )
    return svg.element("g", *parts)
