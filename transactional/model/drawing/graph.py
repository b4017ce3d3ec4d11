"""Draws a topology as boxes in columns: a column per step from the spout, with a line per subscription.

A line is the thicker, the more tuples flow on it. `make_graph` makes the graph from the description that a run has
stored, `lay_out` assigns columns and rows, and `draw_boxes` draws them. Graphs that are too large for boxes are drawn
as rows instead (`transactional.model.drawing.rows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transactional.model.drawing import svg
from transactional.model.drawing.formats import format_short_count
from transactional.model.groupings import DEFAULT_STREAM

WIDTH: Final = 1150.0
"""The width of a picture in its card."""
COLUMNS_MAX: Final = 4
ROWS_MAX: Final = 6
"""The maximum number of columns and rows of boxes. With more there is no room for names, and the picture has rows."""
_NODE_WIDTH_MAX: Final = 240.0
_NODE_HEIGHT: Final = 56.0
_NAME_LINE: Final = 17.0
_NAME_LINES_MAX: Final = 3
_GAP: Final = 128.0
_BETWEEN: Final = 40.0
_MARGIN: Final = 10.0
_DIP: Final = 80.0
"""The distance by which a line that skips a column runs below the boxes."""
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
"""The style of a picture outside the console's pages: dark on white."""

_KINDS: Final = {"processing": "processing", "processing + commit": "both", "commit": "commit"}


@dataclass(frozen=True, slots=True)
class Node:
    """A component of a topology, by the description that a run has stored."""

    id: str
    kind: str
    parallelism: int
    phase: str
    state: str = ""

    @property
    def summary(self) -> str:
        """One line with everything about the component."""
        state = f", {self.state}" if self.state else ""
        tasks = f"{self.parallelism} task{'' if self.parallelism == 1 else 's'}"
        return f"{self.id}: {self.kind}, {tasks}, {self.phase}{state}"


@dataclass(frozen=True, slots=True)
class Edge:
    """A subscription. `tuples` is the mean number per transaction, if it is known."""

    source: str
    target: str
    stream: str
    grouping: str
    tuples: float | None = None

    @property
    def label(self) -> str:
        """The grouping, and the stream unless it is the default one."""
        return self.grouping + ("" if self.stream == DEFAULT_STREAM else f" / {self.stream}")


@dataclass(frozen=True, slots=True)
class Graph:
    """A topology's components and subscriptions. The spouts come first, and each component after its sources."""

    nodes: Sequence[Node] = ()
    edges: Sequence[Edge] = ()


def make_graph(description: Mapping[str, Any], tuples: Mapping[tuple[str, str, str], float] | None = None) -> Graph:
    """Return the graph of a topology from its stored description, empty without one.

    `tuples` is the mean number per transaction by source, stream and target.
    """
    components = description.get("components", ())
    spouts = _spout_nodes(components)
    nodes = [
        *spouts.values(),
        *(_make_node(component, component) for component in components if not component.get("spouts")),
    ]
    component_ids = {str(component["id"]) for component in components}
    edges = []
    for component in components:
        for subscription in component["inputs"]:
            source, stream = str(subscription["source"]), str(subscription["stream"])
            if source not in component_ids:
                continue
            grouping = (
                f"{subscription['grouping']}({', '.join(map(str, subscription['fields']))})"
                if subscription["fields"]
                else str(subscription["grouping"])
            )
            flow = (tuples or {}).get((source, stream, str(component["id"])))
            if (spout := spouts.get((source, stream))) is not None:
                source, stream = spout.id, DEFAULT_STREAM
            edges.append(Edge(source, str(component["id"]), stream, grouping, flow))
    return Graph(nodes, edges)


def _spout_nodes(components: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Node]:
    """Return the nodes of several spouts that one component reads, by component and stream."""
    nodes, ids = dict[tuple[str, str], Node](), {str(component["id"]) for component in components}
    for component in components:
        for number, spout in enumerate(component.get("spouts", ())):
            name = str(spout["id"] if number else component["id"])
            while number and name in ids:  # a stream may be called as a component is
                name += " (spout)"
            nodes[str(component["id"]), str(spout["id"]) if number else DEFAULT_STREAM] = _make_node(
                spout, component, name
            )
            ids.add(name)
    return nodes


def _make_node(description: Mapping[str, Any], component: Mapping[str, Any], name: str = "") -> Node:
    """Return the node of a component, or of one of the spouts that it reads, which has its phase."""
    state = component.get("state", {}).get("kind", "")
    return Node(
        name or str(description["id"]),
        str(description["kind"]),
        int(description["parallelism"]),
        str(component["phase"]),
        str(state),
    )


def phase_color(node: Node) -> str:
    """Return the CSS class for the color of a component's phase."""
    return _KINDS.get(node.phase, "processing")


def format_kind_and_state(node: Node) -> str:
    """Return the line below a component's name: its kind and its state."""
    return f"{node.kind}{' · ' + node.state if node.state else ''}"


def picture_title(graph: Graph) -> str:
    """Return the text that a screen reader reads aloud in place of the picture."""
    subscriptions = ", ".join(f"{edge.source} to {edge.target}" for edge in graph.edges)
    return f"Topology: {subscriptions or graph.nodes[0].id}"


def edge_title(edge: Edge) -> str:
    """Return the text that is shown when the pointer rests on an edge."""
    return f"{edge.source} → {edge.target}: {edge.label}"


def edge_width(edge: Edge, tuples_max: float) -> float:
    """Return the width of an edge's line, if `tuples_max` tuples flow on the thickest one."""
    return 1.5 + (4.5 * (edge.tuples or 0) / tuples_max if tuples_max else 0)


# --- boxes in columns ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Boxes:
    """The layout of boxes: the column and the row of each component, and the size that all boxes have."""

    column: dict[str, int] = field(default_factory=dict)
    row: dict[str, float] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """The lines of each component's name."""

    @property
    def columns(self) -> int:
        """The number of columns that have a box."""
        return max(self.column.values()) + 1

    @property
    def rows(self) -> float:
        """The number of boxes from the highest to the lowest row."""
        return max(self.row.values()) + 1

    @property
    def can_show_names(self) -> bool:
        """True if the boxes are large enough for the names."""
        return self.columns <= COLUMNS_MAX and self.rows <= ROWS_MAX

    @property
    def width(self) -> float:
        """The width of a box."""
        return min(_NODE_WIDTH_MAX, (WIDTH - 2 * _MARGIN - (self.columns - 1) * _GAP) / self.columns)

    @property
    def height(self) -> float:
        """The height of a box: as high as the box with the longest name must be."""
        return _NODE_HEIGHT + _NAME_LINE * (max(map(len, self.names.values())) - 1)

    def corner_of(self, node_id: str) -> tuple[float, float]:
        """Return the upper left corner of a box."""
        x = _MARGIN + self.column[node_id] * (self.width + _GAP)
        return x, _MARGIN + self.row[node_id] * (self.height + _BETWEEN)

    def skips_column(self, edge: Edge) -> bool:
        """Return True if an edge passes a column without ending there."""
        return self.column[edge.target] - self.column[edge.source] > 1


def lay_out(graph: Graph) -> Boxes:
    """Return a layout: a component's column is the longest path from a spout, its row near the mean of its sources."""
    layout = Boxes()
    sources = {node.id: [edge.source for edge in graph.edges if edge.target == node.id] for node in graph.nodes}
    for node in graph.nodes:
        layout.column[node.id] = max(
            (layout.column[source] + 1 for source in sources[node.id] if source in layout.column), default=0
        )
    for column in range(layout.columns):
        node_ids = [node.id for node in graph.nodes if layout.column[node.id] == column]
        _fill_column(layout, node_ids, sources)
    highest = min(layout.row.values())
    layout.row = {name: row - highest for name, row in layout.row.items()}
    name_width = layout.width - 34
    layout.names = {node.id: svg.wrap(node.id, name_width, _NAME_LINES_MAX, svg.BOLD) for node in graph.nodes}
    return layout


def _fill_column(layout: Boxes, node_ids: Sequence[str], sources: Mapping[str, Sequence[str]]) -> None:
    def mean_source_row(name: str) -> float:
        rows = [layout.row[source] for source in sources[name] if source in layout.row]
        return sum(rows) / len(rows) if rows else 0.0

    sorted_ids = sorted(node_ids, key=mean_source_row)
    centre = sum(map(mean_source_row, sorted_ids)) / len(sorted_ids)
    for index, name in enumerate(sorted_ids):
        layout.row[name] = centre + index - (len(sorted_ids) - 1) / 2


def draw_boxes(graph: Graph, layout: Boxes, *, style: str = "") -> str:
    """Return the picture of the boxes and edges as SVG."""
    tuples_max = max((edge.tuples or 0 for edge in graph.edges), default=0)
    lines = [
        _draw_edge(layout, edge, edge_width(edge, tuples_max), _label_position(graph, edge)) for edge in graph.edges
    ]
    boxes = [_draw_node(layout, node) for node in graph.nodes]
    width = 2 * _MARGIN + layout.columns * (layout.width + _GAP) - _GAP
    below = 56 if any(map(layout.skips_column, graph.edges)) else 0
    height = 2 * _MARGIN + layout.rows * (layout.height + _BETWEEN) - _BETWEEN + below
    return svg.picture(width, height, picture_title(graph), *lines, *boxes, class_="graph wide", style=style)


def _draw_node(layout: Boxes, node: Node) -> str:
    x, y = layout.corner_of(node.id)
    names = layout.names[node.id]
    subtitle_y = y + 24 + _NAME_LINE * (len(names) - 1) + 18
    tasks = f"\u00d7{node.parallelism}"
    subtitle_text = svg.shorten(format_kind_and_state(node), layout.width - 58 - svg.text_width(tasks))
    return svg.element(
        "g",
        svg.title(node.summary),
        svg.element("rect", class_="node", x=x, y=y, rx=9, width=layout.width, height=layout.height),
        svg.element(
            "rect", class_=f"accent {phase_color(node)}", x=x + 9, y=y + 11, rx=2, width=4, height=layout.height - 22
        ),
        *(svg.text(line, x + 22, y + 24 + number * _NAME_LINE, class_="name") for number, line in enumerate(names)),
        svg.text(subtitle_text, x + 22, subtitle_y, class_="kind"),
        svg.text(tasks, x + layout.width - 12, subtitle_y, class_="par", text_anchor="end"),
    )


def _label_position(graph: Graph, edge: Edge) -> float:
    """Return the position of an edge's label, from 0 to 1: away from other labels where several edges begin or end."""
    if sum(sibling.source == edge.source for sibling in graph.edges) > 1:
        return 0.68
    return 0.32 if sum(sibling.target == edge.target for sibling in graph.edges) > 1 else 0.5


def _draw_edge(layout: Boxes, edge: Edge, width: float, share: float) -> str:
    x1, y1 = layout.corner_of(edge.source)
    x2, y2 = layout.corner_of(edge.target)
    x1, y1, y2 = x1 + layout.width, y1 + layout.height / 2, y2 + layout.height / 2
    dip = _DIP if layout.skips_column(edge) else 0.0
    bend = (x2 - x1) / 2
    path = f"M{x1:.1f} {y1:.1f} C{x1 + bend:.1f} {y1 + dip:.1f} {x2 - bend:.1f} {y2 + dip:.1f} {x2:.1f} {y2:.1f}"
    share = 0.5 if dip else share
    remaining_share = 1 - share
    middle = 3 * remaining_share * share  # both inner points of the curve are in the middle between its ends
    lx = remaining_share**3 * x1 + middle * (x1 + x2) / 2 + share**3 * x2
    ly = (remaining_share**3 + middle * remaining_share) * y1 + (middle * share + share**3) * y2 + middle * dip
    above_y, below_y = ly - 8 - width / 2, ly + 15 + width / 2
    label = svg.shorten(edge.label, _LABEL_WIDTH)
    parts = [
        svg.title(edge_title(edge)),
        svg.element("path", class_="edge", d=path, stroke_width=width),
        svg.element("circle", class_="port", cx=x2, cy=y2, r=3.5),
        svg.text(label, lx, below_y + 1 if dip else above_y, class_="label", text_anchor="middle"),
    ]
    if edge.tuples is not None:
        flow = format_short_count(edge.tuples)
        parts.append(svg.text(flow, lx, above_y if dip else below_y, class_="flow", text_anchor="middle"))
    return svg.element("g", *parts)
