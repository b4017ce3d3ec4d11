"""What streams are compiled to: shapes as text, read by eye; the same in every build.

Storm rows R2, R13, R17 and R20.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from state.memory import MemoryMapState, MemoryTable
from tests.unit.topology.streams.shapes import built, lines, split
from transactional.model.groupings import CustomStreamGrouping
from transactional.topology.stages import plan_stages
from transactional.topology.streams import combining
from transactional.topology.topology import Topology
from transactional.trident import Count, Max, Stream, Sum, TridentTopology, field

GOLDEN = Path(__file__).parent / "shapes.txt"


class ToFirst(CustomStreamGrouping):
    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
        return [0]


def state(name: str = "counts") -> MemoryMapState:
    return MemoryMapState(table=MemoryTable(name))


def count(stream: Stream, name: str = "counts") -> Any:
    return stream.group_by("word").persistent_aggregate(state(name), Count())


def changes(stream: Stream) -> None:
    new = count(stream.flat_map(split)).new_values(old=True)
    new.filter(field("count") > 1).group_by("count").persistent_aggregate(state("sizes"), words=Count())


def two_tables(stream: Stream) -> None:
    words = stream.flat_map(split)
    count(words.filter(field("word") != "the"))
    words.with_columns(one=1).persistent_aggregate(state("total"), total=Sum("one"))


def merged(stream: Stream) -> None:
    words = stream.flat_map(split)
    count(words.filter(lambda t: t.word > "m").merge(words.map(lambda t: (t.word.upper(),))).filter(lambda t: t.word))


def merged_after_a_cut(stream: Stream) -> None:
    words = stream.flat_map(split)
    count(words.merge(words.partition_by("word").map(lambda t: (t.word.upper(),))))


def merged_with_new_values(stream: Stream) -> None:
    words = stream.flat_map(split)
    new = count(words).new_values().project("word")
    count(words.filter(lambda t: t.word).merge(new), "again")


def joined(*given: Any) -> Stream:
    declarations = given[0][0]._declarations
    join, streams = combining.make_join(declarations, given, "left", keeps_all=False, output=None)
    return combining.combine_streams(declarations, streams, join)


def a_join(stream: Stream) -> None:
    words = stream.flat_map(split)
    sizes = words.each(lambda t: len(t.word), "size int").rename(other="word")
    both = joined((words.filter(lambda t: t.word), "word"), (sizes, "other")).filter(field("size") > 1)
    count(both)


def a_name(stream: Stream) -> None:
    count(stream.flat_map(split).named("split-it").filter(lambda t: t.word).parallelism_hint(3))


def hints(stream: Stream) -> None:
    words = stream.flat_map(split).parallelism_hint(4)
    count(words.shuffle().filter(lambda t: t.word).parallelism_hint(3).partition_by("word").peek(print))


SHAPES: dict[str, Callable[[Stream], Any]] = {
    "the spout alone": lambda s: s.persistent_aggregate(state(), Count()),
    "one fused bolt": lambda s: count(s.flat_map(split).filter(lambda t: t.word).with_columns(word=field("word"))),
    "a fan-out": two_tables,
    "a split and merge in one stage": merged,
    "a merge behind a repartition": merged_after_a_cut,
    "partition_by": lambda s: count(s.flat_map(split).partition_by("word").peek(print)),
    "shuffle": lambda s: count(s.flat_map(split).shuffle().peek(print)),
    "broadcast": lambda s: count(s.flat_map(split).broadcast().peek(print)),
    "global": lambda s: count(s.flat_map(split).global_().peek(print)),
    "batch_global": lambda s: count(s.flat_map(split).batch_global().peek(print)),
    "a custom grouping": lambda s: count(s.flat_map(split).partition(ToFirst()).peek(print)),
    "no repartition": lambda s: count(s.identity_partition().local_or_shuffle().flat_map(split)),
    "a repartition in front of a state": lambda s: count(s.flat_map(split).partition_by("word")),
    "partition_aggregate": lambda s: (
        s.flat_map(split).partition_aggregate(Count()).persistent_aggregate(state(), Max("count"))
    ),
    "aggregate": lambda s: s.flat_map(split).aggregate(Count()).persistent_aggregate(state(), Max("count")),
    "aggregate by key": lambda s: (
        s.flat_map(split)
        .group_by("word")
        .aggregate(n=Count())
        .filter(field("n") > 1)
        .persistent_aggregate(state(), Max("n"))
    ),
    "a join": a_join,
    "new values": changes,
    "new values merged with a stream": merged_with_new_values,
    "parallelism": hints,
    "a name": a_name,
    "what nobody reads": lambda s: (s.flat_map(split).peek(print), s.persistent_aggregate(state(), Count())),
}


def told(topology: Topology) -> str:
    """Components, what they read, do and emit; then levels and stages."""
    plan = plan_stages(topology)
    text = [f"{topology.spout_id} x{topology.spout_parallelism}"]
    for c in topology.components:
        reads = ", ".join(f"{g} of {g.source}" for g in c.inputs)
        streams = [
            f"{schema}" if name == "default" else f"{name}: {schema}" for name, schema in c.outputs.items() if schema
        ]
        text.append(
            f"{c.id} x{c.parallelism} ({plan.phase_text(c.id)}) <- {reads} -> {'; '.join(streams) or 'nothing'}"
        )
        text += [f"    {step}" for step in getattr(c.bolt, "steps_shown", ())]
    for level in range(plan.depth):
        text.append(f"level {level}: " + " | ".join(" ".join(stage.components) for stage in plan.level(level)))
    return "\n".join(text)


def shape(name: str) -> str:
    return told(built(SHAPES[name]))


def golden() -> dict[str, str]:
    parts = GOLDEN.read_text("utf-8").split("\n== ")[1:]
    return {title: text.strip() for title, _, text in (part.partition(" ==\n") for part in parts)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_compiled_as_was_read_by_eye(name: str) -> None:
    assert shape(name) == golden()[name]


def test_there_is_no_shape_that_nobody_requests() -> None:
    assert list(golden()) == list(SHAPES)


def test_a_hundred_builds_are_equal() -> None:
    """Ids, groupings, tasks: all shapes together are built more often than that."""
    builds = -(-100 // len(SHAPES)) + 1
    for name in SHAPES:
        assert {shape(name) for _ in range(builds)} == {golden()[name]}
    topology = TridentTopology("twice", parallelism=2)
    changes(lines(topology))
    assert told(topology.build()) == told(topology.build())


def test_an_inserted_step_moves_no_table_to_another_committer() -> None:
    def committers(make: Callable[[Stream], Stream]) -> dict[str, Any]:
        def both(stream: Stream) -> None:
            words = make(stream)
            count(words)
            count(words.filter(lambda t: t.word), "others")

        return dict(built(both).fingerprint()["committers"])

    plain = committers(lambda s: s.flat_map(split))
    assert plain == committers(lambda s: s.filter(lambda t: t.line).shuffle().flat_map(split).peek(print))
    assert set(plain) == {"counts", "others"}
