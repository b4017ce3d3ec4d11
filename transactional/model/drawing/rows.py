"""Draws a topology as rows, one per component, with the lines between them at the left.

It is the picture for small screens, and for topologies with too many components for boxes side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from transactional.model.drawing import svg
from transactional.model.drawing.formats import format_short_count
from transactional.model.drawing.graph import (
    Graph,
    Node,
    draw_boxes,
    edge_title,
    edge_width,
    format_kind_and_state,
    lay_out,
    phase_color,
    picture_title,
)

WIDE: Final = 1120.0
NARROW: Final = 320.0
_LINE: Final = 17.0
_PAD: Final = 9.0
_STEP: Final = 20.0
_BEND: Final = 8.0
_LANES_SHARE_MAX: Final = 0.3
"""The maximum share of the width for lanes."""


@dataclass(slots=True)
class Lanes:
    """The row and the lane of each component.

    A component has its lane for itself from its own row to the row of the last component that reads from it. So lines
    cross, but never lie upon each other.
    """

    row: dict[str, int] = field(default_factory=dict)
    lane: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of lanes side by side."""
        return max(self.lane.values(), default=0) + 1


def sort_nodes(graph: Graph) -> list[Node]:
    """Return the components in an order in which each follows all of its sources, as closely as possible."""
    by_id = {node.id: node for node in graph.nodes}
    sources = {node.id: {edge.source for edge in graph.edges if edge.target == node.id} for node in graph.nodes}
    stack = [node.id for node in reversed(graph.nodes) if not sources[node.id]]
    sorted_nodes = dict[str, Node]()
    while stack:
        name = stack.pop()
        sorted_nodes[name] = by_id[name]
        targets = dict.fromkeys(edge.target for edge in graph.edges if edge.source == name)
        stack += [target for target in reversed(targets) if sources[target] <= sorted_nodes.keys()]
    return list(sorted_nodes.values())


def assign_lanes(graph: Graph, nodes: Sequence[Node]) -> Lanes:
    """Return a lane for each component: a lane that ends at its row, else the first free one."""
    lanes = Lanes({node.id: number for number, node in enumerate(nodes)})
    ends = list[int]()
    for number, node in enumerate(nodes):
        readers = [lanes.row[edge.target] for edge in graph.edges if edge.source == node.id]
        source_lanes = {lanes.lane[edge.source] for edge in graph.edges if edge.target == node.id}
        ending_lanes = [lane for lane in sorted(source_lanes) if ends[lane] == number]
        free = [lane for lane, end in enumerate(ends) if end < number]
        lane = (ending_lanes or free or [len(ends)])[0]
        ends[lane : lane + 1] = [max(readers, default=number)]
        lanes.lane[node.id] = lane
    return lanes


def draw_graph(graph: Graph) -> str:
    """Return two pictures, of which a page shows the one that fits its width; nothing without components."""
    if not graph.nodes:
        return ""
    return draw_wide(graph) + draw_rows(graph, NARROW)


def draw_wide(graph: Graph, *, style: str = "") -> str:
    """Return the picture for a large screen; with a `style` it needs no page around it."""
    layout = lay_out(graph)
    return draw_boxes(graph, layout, style=style) if layout.can_show_names else draw_rows(graph, WIDE, style=style)


def draw_rows(graph: Graph, width: float, *, style: str = "") -> str:
    """Return the picture with this width."""
    nodes = sort_nodes(graph)
    lanes = assign_lanes(graph, nodes)
    step = min(_STEP, width * _LANES_SHARE_MAX / lanes.count)
    tops, y = list[float](), 0.0
    for node in nodes:
        tops.append(y)
        y += _row_height(graph, node, width)
    dots = {
        node.id: (_PAD + lanes.lane[node.id] * step, top + _PAD + _LINE / 2)
        for node, top in zip(nodes, tops, strict=True)
    }
    left = dots[nodes[0].id][0] + lanes.count * step
    tuples_max = max((edge.tuples or 0 for edge in graph.edges), default=0)
    lines = [
        _draw_line(*dots[edge.source], *dots[edge.target], edge_width(edge, tuples_max), edge_title(edge))
        for edge in graph.edges
    ]
    rows = [_draw_row(graph, node, dots[node.id], left, width) for node in nodes]
    kind = "wide" if width > NARROW else "narrow"
    return svg.picture(width, y, picture_title(graph), *lines, *rows, class_=f"graph rows {kind}", style=style)


def _input_texts(graph: Graph, node: Node) -> list[str]:
    texts = []
    for edge in graph.edges:
        if edge.target == node.id:
            flow = "" if edge.tuples is None else f" · {format_short_count(edge.tuples)}"
            texts.append(f"{edge.label} of {edge.source}{flow}")
    return texts


def _row_height(graph: Graph, node: Node, width: float) -> float:
    inputs = len(_input_texts(graph, node))
    return 2 * _PAD + _LINE * (2 + inputs if width <= NARROW else max(2, inputs))


def _draw_line(x1: float, y1: float, x2: float, y2: float, width: float, title: str) -> str:
    """Return a line that runs down in the lane of the source, and across to the dot of the target."""
    path = f"M{x1:.1f} {y1:.1f} "
    if x1 == x2:
        path += f"V{y2:.1f}"
    else:
        bend = min(_BEND, abs(x2 - x1)) * (1 if x2 > x1 else -1)
        path += f"V{y2 - _BEND:.1f} q0 {_BEND:.1f} {bend:.1f} {_BEND:.1f} H{x2:.1f}"
    return svg.element("g", svg.title(title), svg.element("path", class_="edge", d=path, stroke_width=width))


def _draw_row(graph: Graph, node: Node, dot: tuple[float, float], left: float, width: float) -> str:
    """Return a row: the dot, the name and the kind, with the inputs beside them, or below them on a narrow picture."""
    (x, y), is_narrow = dot, width <= NARROW
    right = width if is_narrow else width * 0.55
    baseline = y + 4
    tasks = f"\u00d7{node.parallelism}"
    name_width = right - left - svg.text_width(tasks) - 12
    parts = [
        svg.title(node.summary),
        svg.element("circle", class_=f"accent {phase_color(node)}", cx=x, cy=y, r=5.5),
        svg.text(svg.shorten(node.id, name_width, svg.BOLD), left, baseline, class_="name"),
        svg.text(tasks, right - 6, baseline, class_="par", text_anchor="end"),
        svg.text(svg.shorten(format_kind_and_state(node), right - left), left, baseline + _LINE, class_="kind"),
    ]
    at_x, at_y = (left, baseline + 2 * _LINE) if is_narrow else (right + 24, baseline)
    for number, words in enumerate(_input_texts(graph, node)):
        fitted = svg.shorten(words, width - at_x)
        parts.append(svg.text(fitted, at_x, at_y + number * _LINE, class_="label"))
    return svg.element("g", *parts)
