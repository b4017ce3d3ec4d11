"""The picture of a topology in rows: each component after what it reads from, and lines that can be told apart."""

from __future__ import annotations

import re
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.model.drawing.test_graph import READS, of_reads
from transactional.model.drawing.rows import NARROW, WIDE, assign_lanes, draw_rows, sort_nodes


@given(READS)
def test_components_come_after_what_they_read_from_and_lines_never_lie_upon_each_other(reads: list[set[int]]) -> None:
    graph = of_reads(reads)
    nodes = sort_nodes(graph)
    lanes = assign_lanes(graph, nodes)
    assert sorted(node.id for node in nodes) == sorted(node.id for node in graph.nodes)
    assert all(lanes.row[edge.source] < lanes.row[edge.target] for edge in graph.edges)
    last = {node.id: lanes.row[node.id] for node in nodes}
    for edge in graph.edges:
        last[edge.source] = max(last[edge.source], lanes.row[edge.target])
    for one, other in combinations(nodes, 2):
        if lanes.lane[one.id] == lanes.lane[other.id]:
            first, second = sorted((one.id, other.id), key=lanes.row.__getitem__)
            assert last[first] <= lanes.row[second], "a line of one would pass through the other"


def test_a_chain_is_a_straight_line() -> None:
    graph = of_reads([{number} for number in range(14)])
    assert assign_lanes(graph, sort_nodes(graph)).count == 1


@given(READS, st.sampled_from([NARROW, WIDE]))
def test_no_text_of_a_row_lies_upon_another(reads: list[set[int]], width: float) -> None:
    picture = draw_rows(of_reads(reads, "a-name-of-some-length-"), width)
    rows = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)" class="name"', picture)]
    assert all(below - above >= 34 for above, below in pairwise(rows))
    height = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', picture)[0])
    assert all(float(y) <= height for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)"', picture))
