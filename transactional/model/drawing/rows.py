"""The topology as rows, one a component, with the lines between them at the left: for small screens, and for topologies
that boxes side by side have no room for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from transactional.model.drawing import svg
from transactional.model.drawing.formats import short_count
from transactional.model.drawing.graph import (
    Graph,
    Node,
    accent_of,
    draw_boxes,
    layout_of,
    lower_of,
    shown_of,
    title_of,
    width_of,
)

WIDE: Final = 1120.0
NARROW: Final = 320.0
_LINE: Final = 17.0
_PAD: Final = 9.0
_STEP: Final = 20.0
_BEND: Final = 8.0
_LANES: Final = 0.3
"""Lanes take at most this share of the width."""


@dataclass(slots=True)
class Lanes:
    """Which row and which lane each component is in. A lane is a component's own from its row to that of the last
    component that reads from it, so lines cross, but never lie upon each other."""

    row: dict[str, int] = field(default_factory=dict)
    lane: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many lanes there are."""
        return max(self.lane.values(), default=0) + 1


def in_order(graph: Graph) -> list[Node]:
    """The components, each after all that it reads from, and as close behind them as that allows."""
    by_id = {node.id: node for node in graph.nodes}
    sources = {node.id: {edge.source for edge in graph.edges if edge.target == node.id} for node in graph.nodes}
    stack = [node.id for node in reversed(graph.nodes) if not sources[node.id]]
    found = dict[str, Node]()
    while stack:
        name = stack.pop()
        found[name] = by_id[name]
        targets = dict.fromkeys(edge.target for edge in graph.edges if edge.source == name)
        stack += [each for each in reversed(targets) if sources[each] <= found.keys()]
    return list(found.values())


def lanes_of(graph: Graph, nodes: Sequence[Node]) -> Lanes:
    """A component continues the lane that ends with it; else it takes the first that is free."""
    lanes = Lanes({node.id: number for number, node in enumerate(nodes)})
    ends = list[int]()
    for number, node in enumerate(nodes):
        readers = [lanes.row[edge.target] for edge in graph.edges if edge.source == node.id]
        read = {lanes.lane[edge.source] for edge in graph.edges if edge.target == node.id}
        own = [lane for lane in sorted(read) if ends[lane] == number]
        free = [lane for lane, end in enumerate(ends) if end < number]
        lane = (own or free or [len(ends)])[0]
        ends[lane : lane + 1] = [max(readers, default=number)]
        lanes.lane[node.id] = lane
    return lanes


def draw_graph(graph: Graph) -> str:
    """Two pictures, of which a page shows the one that its width has room for; nothing without components."""
    if not graph.nodes:
        return ""
    return draw_wide(graph) + draw_rows(graph, NARROW)


def draw_wide(graph: Graph, *, style: str = "") -> str:
    """The picture for a large screen; with a `style` it needs no page around it."""
    layout = layout_of(graph)
    return draw_boxes(graph, layout, style=style) if layout.fits else draw_rows(graph, WIDE, style=style)


def draw_rows(graph: Graph, width: float, *, style: str = "") -> str:
    """The picture, so wide."""
    nodes = in_order(graph)
    lanes = lanes_of(graph, nodes)
    step = min(_STEP, width * _LANES / lanes.count)
    tops, y = list[float](), 0.0
    for node in nodes:
        tops.append(y)
        y += _height(graph, node, width)
    places = {
        node.id: (_PAD + lanes.lane[node.id] * step, top + _PAD + _LINE / 2)
        for node, top in zip(nodes, tops, strict=True)
    }
    left = places[nodes[0].id][0] + lanes.count * step
    most = max((edge.tuples or 0 for edge in graph.edges), default=0)
    lines = [
        _line(*places[edge.source], *places[edge.target], width_of(edge, most), shown_of(edge)) for edge in graph.edges
    ]
    rows = [_row(graph, node, places[node.id], left, width) for node in nodes]
    kind = "wide" if width > NARROW else "narrow"
    return svg.picture(width, y, title_of(graph), *lines, *rows, class_=f"graph rows {kind}", style=style)


def _inputs(graph: Graph, node: Node) -> list[str]:
    found = []
    for edge in graph.edges:
        if edge.target == node.id:
            flow = "" if edge.tuples is None else f" · {short_count(edge.tuples)}"
            found.append(f"{edge.label} of {edge.source}{flow}")
    return found


def _height(graph: Graph, node: Node, width: float) -> float:
    inputs = len(_inputs(graph, node))
    return 2 * _PAD + _LINE * (2 + inputs if width <= NARROW else max(2, inputs))


def _line(x1: float, y1: float, x2: float, y2: float, width: float, told: str) -> str:
    """Down in the lane of the source, and across to that of the target."""
    path = f"M{x1:.1f} {y1:.1f} "
    if x1 == x2:
        path += f"V{y2:.1f}"
    else:
        bend = min(_BEND, abs(x2 - x1)) * (1 if x2 > x1 else -1)
        path += f"V{y2 - _BEND:.1f} q0 {_BEND:.1f} {bend:.1f} {_BEND:.1f} H{x2:.1f}"
    return svg.element("g", svg.title(told), svg.element("path", class_="edge", d=path, stroke_width=width))


def _row(graph: Graph, node: Node, place: tuple[float, float], left: float, width: float) -> str:
    """The dot, the name and what it is; what it reads beside that, or below it."""
    (x, y), is_narrow = place, width <= NARROW
    until = width if is_narrow else width * 0.55
    first = y + 4
    tasks = f"\u00d7{node.parallelism}"
    room = until - left - svg.width_of(tasks) - 12
    parts = [
        svg.title(node.told),
        svg.element("circle", class_=f"accent {accent_of(node)}", cx=x, cy=y, r=5.5),
        svg.text(svg.shortened(node.id, room, svg.BOLD), left, first, class_="name"),
        svg.text(tasks, until - 6, first, class_="par", text_anchor="end"),
        svg.text(svg.shortened(lower_of(node), until - left), left, first + _LINE, class_="kind"),
    ]
    at_x, at_y = (left, first + 2 * _LINE) if is_narrow else (until + 24, first)
    for number, words in enumerate(_inputs(graph, node)):
        fitted = svg.shortened(words, width - at_x)
        parts.append(svg.text(fitted, at_x, at_y + number * _LINE, class_="label"))
    return svg.element("g", *parts)
