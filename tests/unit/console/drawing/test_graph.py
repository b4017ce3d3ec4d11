"""The picture of a topology: columns by the longest path, no two boxes in one place, every text shortened to fit."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.console.stores import described
from transactional.console.drawing.graph import NODE_HEIGHT, NODE_WIDTH, draw_graph, graph_of


def boxes(picture: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'<rect class="node" x="([\d.]+)" y="([\d.]+)"', picture)]


@given(st.lists(st.sets(st.integers(0, 29), max_size=4), min_size=1, max_size=29))
def test_no_two_components_lie_upon_each_other(reads: list[set[int]]) -> None:
    components = [{"id": "n0", "kind": "Spout", "parallelism": 1, "phase": "processing", "inputs": []}]
    for number, sources in enumerate(reads, 1):
        inputs = [
            {"source": f"n{source % number}", "stream": "default", "grouping": "shuffle", "fields": []}
            for source in sources
        ]
        components.append({"id": f"n{number}", "kind": "Bolt", "parallelism": 1, "phase": "commit", "inputs": inputs})
    graph = graph_of({"components": components})
    picture = draw_graph(graph)
    places = boxes(picture)
    assert len(places) == len(components)
    for place, (x, y) in enumerate(places):
        assert all(abs(x - x2) >= NODE_WIDTH or abs(y - y2) >= NODE_HEIGHT for x2, y2 in places[:place])
    height = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', picture)[0])
    assert all(0 <= y <= height - NODE_HEIGHT for _, y in places)
    column = {node.id: x for node, (x, _) in zip(graph.nodes, places, strict=True)}
    assert all(column[edge.source] < column[edge.target] for edge in graph.edges)


def test_lines_are_as_thick_as_what_flows() -> None:
    tuples = {("component-0", "default", "component-1"): 10_000.0, ("component-1", "default", "component-2"): 100.0}
    picture = draw_graph(graph_of(described("words"), tuples))
    widths = [float(width) for width in re.findall(r'stroke-width="([\d.]+)"', picture)]
    assert widths[0] == 6
    assert widths[1] == 1.5
    assert ">10k<" in picture
    assert ">100<" in picture


def test_long_names_are_shortened_and_told_in_full() -> None:
    picture = draw_graph(graph_of(described("words", name="x" * 200)))
    assert "…" in picture
    assert f"<title>{'x' * 200}component-0: Bolt" in picture


def test_a_topology_that_nobody_described_is_empty() -> None:
    assert not graph_of({}).is_drawn


def test_labels_of_edges_that_part_or_meet_do_not_lie_upon_each_other() -> None:
    """Two edges leave the spout, and two arrive at the last bolt: in the middle of the curves they are too close."""

    def component(name: str, *sources: str) -> dict[str, Any]:
        inputs = [{"source": each, "stream": "default", "grouping": "fields", "fields": ["word"]} for each in sources]
        return {"id": name, "kind": "Bolt", "parallelism": 1, "phase": "processing", "inputs": inputs}

    components = [component("a"), component("b", "a"), component("c", "a"), component("d", "b", "c")]
    tuples = {(s, "default", t): 1_918.0 for s, t in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"))}
    picture = draw_graph(graph_of({"components": components}, tuples))
    for kind in ("label", "flow"):
        found = re.findall(rf'<text x="([\d.]+)" y="([\d.]+)" class="{kind}"', picture)
        places = [(float(x), float(y)) for x, y in found]
        assert len(places) == 4
        for number, (x, y) in enumerate(places):
            assert all(abs(x - other) > 60 or abs(y - another) > 40 for other, another in places[number + 1 :])
