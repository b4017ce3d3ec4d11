"""The topology as a picture: a column per step from the spout, lines as thick as what flows on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.model.drawing import svg
from transactional.model.drawing.formats import short_count
from transactional.model.groupings import DEFAULT_STREAM

WIDTH: Final = 1150.0
"""The room that a picture has in its card."""
COLUMNS_MAX: Final = 4
ROWS_MAX: Final = 6
"""Boxes for more steps or more components side by side have no room for their names: the picture has rows instead."""
_NODE_WIDTH_MAX: Final = 240.0
_NODE_HEIGHT: Final = 56.0
_NAME_LINE: Final = 17.0
_NAME_LINES_MAX: Final = 3
_GAP: Final = 128.0
_BETWEEN: Final = 40.0
_MARGIN: Final = 10.0
_DIP: Final = 80.0
"""How far below the others a line runs that skips a column."""
_LABEL_WIDTH: Final = 108.0

STYLE: Final = (
    "svg.graph{background:#fff;max-width:100%;height:auto;font:12px system-ui,'Segoe UI','DejaVu Sans',sans-serif}"
    "svg.graph text{fill:#1a2232}svg.graph .name{font-weight:650;font-size:13.5px}"
    "svg.graph .kind,svg.graph .par,svg.graph .label{fill:#566173;font-size:11.5px}"
    "svg.graph .label{paint-order:stroke;stroke:#fff;stroke-width:5px;stroke-linejoin:round}"
    "svg.graph .node{fill:#f8f9fb;stroke:#e2e6ec;stroke-width:1.2}"
    "svg.graph .edge{fill:none;stroke:#8d97a8;stroke-linecap:round;opacity:.75}svg.graph .port{fill:#8d97a8}"
    "svg.graph .accent{fill:#4a84ee}svg.graph .accent.both,svg.graph .accent.commit{fill:#14855a}"
)
"""How it looks where no page has a style for it: dark on white, whatever is around it."""

_KINDS: Final = {"processing": "processing", "processing + commit": "both", "commit": "commit"}


@dataclass(frozen=True, slots=True)
class Node:
    """A component, as `described` returns it."""

    id: str
    kind: str
    parallelism: int
    phase: str
    state: str = ""

    @property
    def told(self) -> str:
        """All of it in a line."""
        state = f", {self.state}" if self.state else ""
        tasks = f"{self.parallelism} task{'' if self.parallelism == 1 else 's'}"
        return f"{self.id}: {self.kind}, {tasks}, {self.phase}{state}"


@dataclass(frozen=True, slots=True)
class Edge:
    """A subscription. `tuples` is the mean per transaction, if it is known."""

    source: str
    target: str
    stream: str
    grouping: str
    tuples: float | None = None

    @property
    def label(self) -> str:
        """What stands beside it."""
        return self.grouping + ("" if self.stream == DEFAULT_STREAM else f" / {self.stream}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology's components, the spouts first, each after those that it reads from; and their subscriptions."""

    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()


def graph_of(described: Mapping[str, Any], tuples: Mapping[tuple[str, str, str], float] | None = None) -> Graph:
    """The graph of a topology that a run has described; empty if it has not. `tuples` by source, stream and target."""
    components = described.get("components", ())
    spouts = _spouts_of(components)
    nodes = [*spouts.values(), *(_node_of(c, c) for c in components if not c.get("spouts"))]
    known = {str(c["id"]) for c in components}
    edges = []
    for c in components:
        for i in c["inputs"]:
            source, stream = str(i["source"]), str(i["stream"])
            if source not in known:
                continue
            grouping = f"{i['grouping']}({', '.join(map(str, i['fields']))})" if i["fields"] else str(i["grouping"])
            flow = (tuples or {}).get((source, stream, str(c["id"])))
            if (spout := spouts.get((source, stream))) is not None:
                source, stream = spout.id, DEFAULT_STREAM
            edges.append(Edge(source, str(c["id"]), stream, grouping, flow))
    return Graph(nodes, edges)


def _spouts_of(components: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Node]:
    """Several spouts, by the component that reads them and by the stream of it that each of them is."""
    found, ids = dict[tuple[str, str], Node](), {str(c["id"]) for c in components}
    for c in components:
        for number, spout in enumerate(c.get("spouts", ())):
            name = str(spout["id"] if number else c["id"])
            while number and name in ids:  # a stream may be called as a component is
                name += " (spout)"
            found[str(c["id"]), str(spout["id"]) if number else DEFAULT_STREAM] = _node_of(spout, c, name)
            ids.add(name)
    return found


def _node_of(described: Mapping[str, Any], component: Mapping[str, Any], name: str = "") -> Node:
    """The node of a component, or of one of the spouts that it reads, which work in its phase."""
    state = component.get("state", {}).get("kind", "")
    return Node(
        name or str(described["id"]),
        str(described["kind"]),
        int(described["parallelism"]),
        str(component["phase"]),
        str(state),
    )


def accent_of(node: Node) -> str:
    """The color of its phase."""
    return _KINDS.get(node.phase, "processing")


def lower_of(node: Node) -> str:
    """What stands below its name."""
    return f"{node.kind}{' · ' + node.state if node.state else ''}"


def title_of(graph: Graph) -> str:
    """What is read aloud in place of the picture."""
    told = ", ".join(f"{edge.source} to {edge.target}" for edge in graph.edges)
    return f"Topology: {told or graph.nodes[0].id}"


def shown_of(edge: Edge) -> str:
    """What is shown when the pointer rests on an edge."""
    return f"{edge.source} → {edge.target}: {edge.label}"


def width_of(edge: Edge, most: float) -> float:
    """How thick an edge is, if `most` flows on the thickest."""
    return 1.5 + (4.5 * (edge.tuples or 0) / most if most else 0)


# --- boxes in columns ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Boxes:
    """Where boxes stand: by component its column and its row; and how large all of them are."""

    column: dict[str, int] = field(default_factory=dict)
    row: dict[str, float] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """By component the lines of its name."""

    @property
    def columns(self) -> int:
        """How many there are."""
        return max(self.column.values()) + 1

    @property
    def rows(self) -> float:
        """How many boxes stand one below the other."""
        return max(self.row.values()) + 1

    @property
    def fits(self) -> bool:
        """Whether all names can be read in boxes."""
        return self.columns <= COLUMNS_MAX and self.rows <= ROWS_MAX

    @property
    def width(self) -> float:
        """That of a box."""
        return min(_NODE_WIDTH_MAX, (WIDTH - 2 * _MARGIN - (self.columns - 1) * _GAP) / self.columns)

    @property
    def height(self) -> float:
        """That of a box: as high as the one with the longest name has to be."""
        return _NODE_HEIGHT + _NAME_LINE * (max(map(len, self.names.values())) - 1)

    def place(self, node_id: str) -> tuple[float, float]:
        """The upper left corner of a box."""
        x = _MARGIN + self.column[node_id] * (self.width + _GAP)
        return x, _MARGIN + self.row[node_id] * (self.height + _BETWEEN)

    def skips(self, edge: Edge) -> bool:
        """Whether an edge passes a column."""
        return self.column[edge.target] - self.column[edge.source] > 1


def layout_of(graph: Graph) -> Boxes:
    """Column: the longest path from the spout. Row: near the mean of its sources, as far as the column has room."""
    layout = Boxes()
    sources = {node.id: [edge.source for edge in graph.edges if edge.target == node.id] for node in graph.nodes}
    for node in graph.nodes:
        layout.column[node.id] = max(
            (layout.column[each] + 1 for each in sources[node.id] if each in layout.column), default=0
        )
    for column in range(layout.columns):
        there = [node.id for node in graph.nodes if layout.column[node.id] == column]
        _fill_column(layout, there, sources)
    highest = min(layout.row.values())
    layout.row = {name: row - highest for name, row in layout.row.items()}
    room = layout.width - 34
    layout.names = {node.id: svg.wrapped(node.id, room, _NAME_LINES_MAX, svg.BOLD) for node in graph.nodes}
    return layout


def _fill_column(layout: Boxes, there: Sequence[str], sources: Mapping[str, Sequence[str]]) -> None:
    def wanted(name: str) -> float:
        rows = [layout.row[each] for each in sources[name] if each in layout.row]
        return sum(rows) / len(rows) if rows else 0.0

    ordered = sorted(there, key=wanted)
    centre = sum(map(wanted, ordered)) / len(ordered)
    for place, name in enumerate(ordered):
        layout.row[name] = centre + place - (len(ordered) - 1) / 2


def draw_boxes(graph: Graph, layout: Boxes, *, style: str = "") -> str:
    """The picture."""
    most = max((edge.tuples or 0 for edge in graph.edges), default=0)
    lines = [_edge(layout, edge, width_of(edge, most), _share(graph, edge)) for edge in graph.edges]
    boxes = [_node(layout, node) for node in graph.nodes]
    width = 2 * _MARGIN + layout.columns * (layout.width + _GAP) - _GAP
    below = 56 if any(map(layout.skips, graph.edges)) else 0
    height = 2 * _MARGIN + layout.rows * (layout.height + _BETWEEN) - _BETWEEN + below
    return svg.picture(width, height, title_of(graph), *lines, *boxes, class_="graph wide", style=style)


def _node(layout: Boxes, node: Node) -> str:
    x, y = layout.place(node.id)
    names = layout.names[node.id]
    below = y + 24 + _NAME_LINE * (len(names) - 1) + 18
    tasks = f"\u00d7{node.parallelism}"
    lower = svg.shortened(lower_of(node), layout.width - 58 - svg.width_of(tasks))
    return svg.element(
        "g",
        svg.title(node.told),
        svg.element("rect", class_="node", x=x, y=y, rx=9, width=layout.width, height=layout.height),
        svg.element(
            "rect", class_=f"accent {accent_of(node)}", x=x + 9, y=y + 11, rx=2, width=4, height=layout.height - 22
        ),
        *(svg.text(line, x + 22, y + 24 + number * _NAME_LINE, class_="name") for number, line in enumerate(names)),
        svg.text(lower, x + 22, below, class_="kind"),
        svg.text(tasks, x + layout.width - 12, below, class_="par", text_anchor="end"),
    )


def _share(graph: Graph, edge: Edge) -> float:
    """How far along an edge its label stands: where several part or come together, away from the others' labels."""
    if sum(each.source == edge.source for each in graph.edges) > 1:
        return 0.68
    return 0.32 if sum(each.target == edge.target for each in graph.edges) > 1 else 0.5


def _edge(layout: Boxes, edge: Edge, width: float, share: float) -> str:
    x1, y1 = layout.place(edge.source)
    x2, y2 = layout.place(edge.target)
    x1, y1, y2 = x1 + layout.width, y1 + layout.height / 2, y2 + layout.height / 2
    dip = _DIP if layout.skips(edge) else 0.0
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1 + dip:.1f} {x2 - bend:.1f} {y2 + dip:.1f} {x2:.1f} {y2:.1f}"
    share = 0.5 if dip else share
    rest = 1 - share
    middle = 3 * rest * share  # both inner points of the curve are in the middle between its ends
    lx = rest**3 * x1 + middle * (x1 + x2) / 2 + share**3 * x2
    ly = (rest**3 + middle * rest) * y1 + (middle * share + share**3) * y2 + middle * dip
    above, below = ly - 8 - width / 2, ly + 15 + width / 2
    label = svg.shortened(edge.label, _LABEL_WIDTH)
    parts = [
        svg.title(shown_of(edge)),
        svg.element("path", class_="edge", d=path, stroke_width=width),
        svg.element("circle", class_="port", cx=x2, cy=y2, r=3.5),
        svg.text(label, lx, below + 1 if dip else above, class_="label", text_anchor="middle"),
    ]
    if edge.tuples is not None:
        flow = short_count(edge.tuples)
        parts.append(svg.text(flow, lx, above if dip else below, class_="flow", text_anchor="middle"))
    return svg.element("g", *parts)
