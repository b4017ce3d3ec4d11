"""Topologies of many shapes: words to declare them with, and a strategy that draws any of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from state.memory import MemoryMapState, MemoryTable
from tests.unit.fakes import Total, Upper, builder, total
from transactional.model.groupings import CustomStreamGrouping, GroupingKind
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology


def upper(made: TransactionalTopologyBuilder, bolt_id: str, parallelism: int = 1) -> Any:
    return made.set_bolt(bolt_id, Upper(), parallelism)


def committer(made: TransactionalTopologyBuilder, bolt_id: str, parallelism: int = 1) -> Any:
    return made.set_committer_bolt(bolt_id, Total(), parallelism, state=total(MemoryTable(bolt_id)))


def update(made: TransactionalTopologyBuilder, bolt_id: str) -> Any:
    return made.set_committer_bolt(bolt_id, MemoryMapState("word", table=MemoryTable(bolt_id)).count())


def frame(made: TransactionalTopologyBuilder, bolt_id: str, parallelism: int = 1) -> Any:
    def function(frame: DataFrame) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - Spark is not needed here

    return made.set_bolt(bolt_id, function, parallelism, output="word string")


class Twice(CustomStreamGrouping):
    """Every tuple goes to the first task, and to the last."""

    def prepare(self, source_task: int, task_count: int) -> None:
        self.last = task_count - 1

    def choose_tasks(self, values: tuple[Any, ...]) -> list[int]:
        return [0, self.last]


ARGUMENTS: dict[GroupingKind, tuple[Any, ...]] = {
    GroupingKind.FIELDS: ("word",),
    GroupingKind.PARTIAL_KEY: ("word",),
    GroupingKind.CUSTOM: (Twice(),),
}


@st.composite
def topologies(draw: st.DrawFn, *, frames: bool) -> Topology:
    """Bolts that read from any bolts before them in any way, behind them a committer and an update; some DataFrames."""
    made = builder(parallelism=draw(st.integers(1, 3)))
    known = ["spout"]
    for number in range(draw(st.integers(0, 7))):
        is_frame = frames and draw(st.integers(0, 5)) == 0
        sources = draw(st.lists(st.sampled_from(known), min_size=1, max_size=1 if is_frame else 3, unique=True))
        declarer = (frame if is_frame else upper)(made, f"bolt{number}", draw(st.integers(1, 3)))
        for source in sources:
            kind = draw(st.sampled_from([kind for kind in GroupingKind if kind is not GroupingKind.DIRECT]))
            getattr(declarer, f"{kind.value.replace(' ', '_')}_grouping")(source, *ARGUMENTS.get(kind, ()))
        known.append(declarer.id)
    committer(made, "sum").shuffle_grouping(draw(st.sampled_from(known)))
    update(made, "count").shuffle_grouping(draw(st.sampled_from(known)))
    return made.build()
