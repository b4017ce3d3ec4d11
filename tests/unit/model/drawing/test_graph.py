"""The picture of a topology in boxes: columns by the longest path, no two boxes in one place, every name readable."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operations.console.stores import described
from transactional.model.drawing import svg
from transactional.model.drawing.graph import WIDTH, Graph, draw_boxes, lay_out, make_graph
from transactional.model.drawing.rows import NARROW, WIDE, draw_graph

NAME = "orders-by-customer-and-by-day-of-delivery"


def component(name: str, *sources: str) -> dict[str, Any]:
    inputs = [{"source": each, "stream": "default", "grouping": "fields", "fields": ["word"]} for each in sources]
    return {"id": name, "kind": "Bolt", "parallelism": 1, "phase": "processing", "inputs": inputs}


def of_reads(reads: list[set[int]], name: str = "n") -> Graph:
    """A topology whose components read from these that come before."""
    components = [component(f"{name}0")]
    for number, sources in enumerate(reads, 1):
        components.append(component(f"{name}{number}", *{f"{name}{source % number}": 0 for source in sources}))
    return make_graph({"components": components})


READS = st.lists(st.sets(st.integers(0, 29), max_size=4), min_size=1, max_size=29)


@given(READS)
def test_no_two_components_lie_upon_each_other(reads: list[set[int]]) -> None:
    graph = of_reads(reads)
    layout = lay_out(graph)
    picture = draw_boxes(graph, layout)
    found = re.findall(r'<rect class="node" x="([\d.]+)" y="([\d.]+)"', picture)
    places = [(float(x), float(y)) for x, y in found]
    assert len(places) == len(graph.nodes)
    for place, (x, y) in enumerate(places):
        assert all(abs(x - x2) >= layout.width or abs(y - y2) >= layout.height for x2, y2 in places[:place])
    height = float(re.findall(r'viewBox="0 0 [\d.]+ (\d+)"', picture)[0])
    assert all(0 <= y <= height - layout.height for _, y in places)
    column = {node.id: x for node, (x, _) in zip(graph.nodes, places, strict=True)}
    assert all(column[edge.source] < column[edge.target] for edge in graph.edges)


SHAPES = {
    "3 in a chain": [{0}, {1}],
    "4 in a chain": [{0}, {1}, {2}],
    "7 in a chain": [{number} for number in range(6)],
    "7 with two branches": [{0}, {0}, {1}, {2}, {3, 4}, {1}],
    "15 in a chain": [{number} for number in range(14)],
    "15 as a tree": [{number // 2} for number in range(14)],
    "a bolt with 12 tables": [{0}, *({1} for _ in range(12))],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_picture_fits_its_card_and_has_all_names(shape: str) -> None:
    graph = of_reads(SHAPES[shape], NAME)
    wide, narrow = re.findall(r"<svg.*?</svg>", draw_graph(graph))
    for picture, room in ((wide, max(WIDTH, WIDE)), (narrow, NARROW)):
        assert float(re.findall(r'viewBox="0 0 (\d+) ', picture)[0]) <= room
        texts = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="(\w+)"(?: text-anchor="(\w+)")?>(.*?)<', picture)
        for x, kind, anchor, words in texts:
            width = svg.text_width(words, svg.BOLD if kind == "name" else svg.CHARACTER)
            left = float(x) - {"end": width, "middle": width / 2}.get(anchor, 0.0)
            assert left >= 0, words
            assert left + width <= room, words
    names = "".join(re.findall(r'class="name">([^<]*)<', wide))
    assert all(node.id in names for node in graph.nodes), "a name of 40 characters can be read"


def test_lines_are_as_thick_as_what_flows() -> None:
    tuples = {("component-0", "default", "component-1"): 10_000.0, ("component-1", "default", "component-2"): 100.0}
    for picture in re.findall(r"<svg.*?</svg>", draw_graph(make_graph(described("words"), tuples))):
        widths = [float(width) for width in re.findall(r'stroke-width="([\d.]+)"', picture)]
        assert widths[0] == 6
        assert widths[1] == 1.5
        assert "10k<" in picture
        assert "100<" in picture


def test_long_names_are_shortened_and_told_in_full() -> None:
    picture = draw_graph(make_graph(described("words", name="x" * 200)))
    assert "…" in picture
    assert f"<title>{'x' * 200}component-0: Bolt" in picture


def test_a_topology_that_nobody_described_is_not_drawn() -> None:
    assert draw_graph(make_graph({})) == ""


def test_labels_of_edges_that_part_or_meet_do_not_lie_upon_each_other() -> None:
    """Two edges leave the spout, and two arrive at the last bolt: in the middle of the curves they are too close."""
    components = [component("a"), component("b", "a"), component("c", "a"), component("d", "b", "c")]
    tuples = {(s, "default", t): 1_918.0 for s, t in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))}
    graph = make_graph({"components": components}, tuples)
    picture = draw_boxes(graph, lay_out(graph))
    for kind in ("label", "flow"):
        found = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)" class="{kind}"', picture)
        places = [(float(x), float(y)) for x, y in found]
        assert len(places) == 4
        for number, (x, y) in enumerate(places):
            assert all(abs(x - other) > 60 or abs(y - another) > 40 for other, another in places[number + 1 :])
