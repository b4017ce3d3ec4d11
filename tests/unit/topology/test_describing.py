"""`transactional describe`: what it shows of seed 004's picture, as a table, as a flowchart, as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from spouts import MemoryTransactionalSpout
from state import MemoryMapState
from tests.unit.fakes import builder
from tests.unit.topology.test_phases import Passing, Splitting, the_seeds_picture, update
from transactional import TransactionalTopologyBuilder
from transactional.model.drawing.graph import make_graph
from transactional.model.drawing.rows import NARROW, draw_rows, draw_wide
from transactional.topology.describing import describe_in_lines, describe_topology, draw_mermaid, notebook_view
from transactional.topology.topology import Topology
from transactional.trident import Count, TridentTopology

MERMAID = """
flowchart LR
    n0([spout])
    n1["A x1<br>processing"]
    n2[["B x1<br>processing + commit"]]
    n3[["C x2<br>processing + commit"]]
    n4[["D x1<br>commit"]]
    n0 -->|"shuffle"| n1
    n1 -->|"shuffle"| n2
    n1 -->|"shuffle"| n3
    n2 -->|"shuffle"| n3
    n3 -->|"shuffle"| n4
"""


def picture() -> Topology:
    made = builder()
    the_seeds_picture(made)
    return made.build()


def test_the_flowchart_shows_phases_and_groupings() -> None:
    assert draw_mermaid(picture()) == MERMAID.strip()


def test_each_spout_is_a_node_of_its_own() -> None:
    spout = MemoryTransactionalSpout([[("cat",)]], "word string", take=1)
    made = TransactionalTopologyBuilder("several", "orders", spout, parallelism=2)
    made.set_spout("refunds", spout)
    both = made.set_bolt("both", Passing("both")).shuffle_grouping("orders")
    both.fields_grouping("refunds", "word")
    made.set_committer_bolt("counts", MemoryMapState("word").count()).fields_grouping("both", "word")
    topology = made.build()
    assert draw_mermaid(topology).splitlines()[1:] == [
        "    n0([orders])",
        "    s1([refunds])",
        '    n1["both x1<br>processing"]',
        '    n2[["counts x1<br>processing + commit"]]',
        '    n0 -->|"shuffle"| n1',
        '    s1 -->|"fields(word)"| n1',
        '    n1 -->|"fields(word)"| n2',
    ]
    graph = make_graph(
        describe_topology(topology), {("orders", "default", "both"): 7, ("orders", "refunds", "both"): 3}
    )
    assert [node.summary for node in graph.nodes[:2]] == [
        "orders: MemoryTransactionalSpout, 2 tasks, processing",
        "refunds: MemoryTransactionalSpout, 1 task, processing",
    ]
    assert [(edge.source, edge.target, edge.label, edge.tuples) for edge in graph.edges[:2]] == [
        ("orders", "both", "shuffle", 7),
        ("refunds", "both", "fields(word)", 3),
    ]
    for view in (draw_wide(graph), draw_rows(graph, NARROW), notebook_view(topology)["image/svg+xml"]):
        assert ">refunds</text>" in view


def test_a_spout_that_is_called_as_a_component_has_a_node_of_its_own() -> None:
    spout = MemoryTransactionalSpout([[("cat",)]], "word string", take=1)
    made = TridentTopology("several")
    made.new_stream("orders", spout).group_by("word").persistent_aggregate(MemoryMapState(), Count(), name="counts")
    refunds = made.new_stream("refunds", spout)
    refunds.group_by("word").persistent_aggregate(MemoryMapState(), Count(), name="refunds")
    graph = make_graph(describe_topology(made.build()))
    assert [node.id for node in graph.nodes] == ["orders", "refunds (spout)", "counts", "refunds"]
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        ("orders", "counts"),
        ("refunds (spout)", "refunds"),
    ]


def test_each_component_has_its_lines_and_is_below_the_first_that_it_reads_from() -> None:
    spout, *_, joining, last = describe_in_lines(picture())
    assert (spout.above, spout.lines) == (
        None,
        ("spout: MemoryTransactionalSpout, 1 task, processing", "emits  word string"),
    )
    assert (joining.above, joining.lines) == (
        "A",
        (
            "C: Passing, 2 tasks, processing + commit (driver or job)",
            "reads  shuffle of A",
            "reads  shuffle of B",
            "emits  word string",
        ),
    )
    assert last.lines[1:] == ("reads  shuffle of C", "emits  word string", "state  opaque")


def test_a_bolt_of_several_steps_shows_them() -> None:
    bolt = Passing("both")
    bolt.steps_shown = ("map(str)", "filter(bool)")  # type: ignore[attr-defined]
    made = builder()
    made.set_bolt("both", bolt).shuffle_grouping("spout")
    update(made, "count").shuffle_grouping("both")
    _, both, _ = describe_in_lines(made.build())
    assert both.lines[1:3] == ("does   map(str)", "does   filter(bool)")
    assert describe_topology(made.build())["components"][1]["steps"] == ["map(str)", "filter(bool)"]


def test_json_holds_all_of_it() -> None:
    found = json.loads(json.dumps(describe_topology(picture())))
    phases = {component["id"]: (component["phase"], component["stage"]) for component in found["components"]}
    assert phases == {
        "spout": ("processing", 0),
        "A": ("processing", 0),
        "B": ("processing + commit", 0),
        "C": ("processing + commit", 1),
        "D": ("commit", None),
    }
    assert found["components"][3]["inputs"] == [
        {"source": "A", "stream": "default", "grouping": "shuffle", "fields": []},
        {"source": "B", "stream": "default", "grouping": "shuffle", "fields": []},
    ]


def test_streams_and_fields_are_reported() -> None:
    made = builder()
    made.set_bolt("split", Splitting()).shuffle_grouping("spout")
    made.set_bolt("direct", Splitting()).direct_grouping("split", stream="chosen")
    made.set_committer_bolt("count", update(builder(), "count").bolt).partial_key_grouping(
        "split", "word", stream="short"
    )
    lines = {each.id: each.lines for each in describe_in_lines(made.build())}
    assert lines["split"][-3:] == (
        "emits  word string",
        "emits  word string, length long / short",
        "emits  word string / chosen",
    )
    assert "reads  direct of split / chosen" in lines["direct"]
    assert "reads  partial key(word) of split / short" in lines["count"]
    assert lines["count"][0].startswith("count: StateUpdate, ")


def test_a_notebook_shows_the_graph_and_the_components_below_those_that_they_read_from() -> None:
    view = picture()._repr_mimebundle_(include=None, exclude=None)
    assert view["image/svg+xml"].count('class="name"') == 5
    assert "<style>svg.graph{" in view["image/svg+xml"], "there is no page around it that has one"
    lines = view["text/plain"].splitlines()
    assert lines[:4] == [
        *("words", "  spout: MemoryTransactionalSpout, 1 task, processing", "      emits  word string"),
        "    A: Passing, 1 task, processing",
    ]
    assert [line.strip()[0] for line in lines if ": " in line] == ["s", "A", "B", "C", "D"]


def test_a_topology_that_no_builder_has_made_is_shown_by_its_name() -> None:
    topology = replace(picture(), view=None)
    assert topology._repr_mimebundle_() == {"text/plain": repr(topology)}
    assert topology == replace(topology, view=lambda _: {}), "how it is shown is no part of what it is"


def test_a_graph_too_large_for_boxes_is_drawn_as_rows() -> None:
    made = builder()
    for number in range(30):
        made.set_bolt(f"b{number}", lambda row: row, output="word string").shuffle_grouping("spout")
    update(made, "counts").fields_grouping("b0", "word")
    picture = made.build()._repr_mimebundle_()["image/svg+xml"]
    assert 'class="graph rows wide"><style>' in picture
    assert picture.count('class="name"') == 32
