"""How a topology is divided into stages and levels: pure, known before anything runs.

A *stage* is a group of components that share their tasks: what one emits, the next receives in the same task. A
*level* holds all stages of the same depth. One attempt runs level after level in a single Spark job; between two
levels there is one exchange, in which every emitted Arrow batch is addressed to a task of the next level. So data
with several subscribers is computed once, a bolt may have several inputs, and the number of exchanges is the depth of
the topology. Data for a deeper level, or for the driver, is passed on by the tasks in between.

The output of a component that finishes in the commit phase is processed in the commit phase, and goes to the driver.
So a component without other input is in no stage; nor is a stateful bolt, whatever its input.
"""

from __future__ import annotations

from dataclasses import dataclass

from transactional.model.groupings import Grouping
from transactional.topology.topology import Component, Topology, WorkPhase

SPOUT_STAGE = 0

COMMIT_STAGE = -1
"""The target stage of an edge that leads into the commit phase."""


@dataclass(frozen=True, slots=True)
class StageEdge:
    """A subscription that crosses stages: from component `source` to the stage that begins with component `target`."""

    source: str
    target: str
    grouping: Grouping
    target_stage: int
    task_count: int


@dataclass(frozen=True, slots=True)
class Stage:
    """Component ids with their common number of tasks; all but the first are fed inside the stage."""

    index: int
    level: int
    components: tuple[str, ...]
    task_count: int
    is_dataframe: bool = False


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The stages by level, and the targets of each component's output.

    `phases` says in which phase a component finishes, `early` which components begin in the processing phase.
    `aggregated` has, per component, the `PersistentAggregate` committers that take its output: their partial aggregates
    are computed in the emitting task, and combined in the driver.
    """

    stages: tuple[Stage, ...]
    edges: dict[str, tuple[StageEdge, ...]]
    aggregated: dict[str, tuple[str, ...]]
    phases: dict[str, WorkPhase]
    early: frozenset[str]

    def phase_text(self, component: str) -> str:
        """Return the phases in which a component works, as text."""
        finishes = self.phases[component]
        is_both = finishes is WorkPhase.COMMIT and component in self.early
        return f"{WorkPhase.PROCESSING.value} + {finishes.value}" if is_both else finishes.value

    @property
    def depth(self) -> int:
        """The number of levels of the topology."""
        return 1 + max(stage.level for stage in self.stages)

    def level(self, number: int) -> tuple[Stage, ...]:
        """Return the stages of one level, in order."""
        return tuple(stage for stage in self.stages if stage.level == number)

    def slots(self, level: int) -> list[tuple[Stage, int]]:
        """Return the tasks of one level as stage and task index. Their positions are the partition numbers in the Spark
        job."""
        return [(stage, task) for stage in self.level(level) for task in range(stage.task_count)]


def plan_stages(topology: Topology, late: frozenset[str] = frozenset()) -> StagePlan:
    """Divide a topology into stages. Deterministic: the same topology gives the same plan in every process.

    Components that are `late` receive nothing before the commit phase, although they could.
    """
    return _Planner(topology, late).plan()


class _Planner:
    def __init__(self, topology: Topology, late: frozenset[str]) -> None:
        self.topology = topology
        self.phases, self.early = topology.phases(), topology.begins_early() - late
        self.chains: list[list[str]] = [[topology.spout_id]]
        self.levels: list[int] = [0]
        self.tasks: list[int] = [topology.spout_parallelism]
        self.dataframe: list[bool] = [False]
        self.stage_of: dict[str, int] = {topology.spout_id: SPOUT_STAGE}

    def plan(self) -> StagePlan:
        updates = [component for component in self.topology.components if component.is_update]
        for component in self._staged_bolts():
            self._add_to_stage(component)
        stages = tuple(
            Stage(i, self.levels[i], tuple(self.chains[i]), self.tasks[i], self.dataframe[i])
            for i in range(len(self.chains))
        )
        return StagePlan(stages, self._edges(), _updates_by_source(updates), self.phases, self.early)

    def _staged_bolts(self) -> list[Component]:
        bolts = [component for component in self.topology.components if not component.is_update]
        return [component for component in bolts if component.id in self.early]

    def _add_to_stage(self, component: Component) -> None:
        if self._fuses(component):
            stage = self.stage_of[component.inputs[0].source]  # that of all its inputs
            self.chains[stage].append(component.id)
        else:
            stage = len(self.chains)
            self.chains.append([component.id])
            sources = [g.source for g in component.inputs if self.phases[g.source] is WorkPhase.PROCESSING]
            self.levels.append(1 + max(self.levels[self.stage_of[source]] for source in sources))
            self.tasks.append(component.parallelism)
            self.dataframe.append(component.is_dataframe)
        self.stage_of[component.id] = stage

    def _fuses(self, component: Component) -> bool:
        """Return whether a component joins the stage of its inputs: tuples may stay in their task, and none comes in
        the commit phase."""
        sources = {grouping.source for grouping in component.inputs}
        if any(self.phases[source] is not WorkPhase.PROCESSING for source in sources):
            return False
        stages = {self.stage_of[source] for source in sources}
        stage = stages.pop()
        return (
            not stages
            and all(grouping.kind.is_shuffle for grouping in component.inputs)
            and not component.is_dataframe
            and not self.dataframe[stage]
            and self.tasks[stage] == component.parallelism
        )

    def _edges(self) -> dict[str, tuple[StageEdge, ...]]:
        edges: dict[str, tuple[StageEdge, ...]] = {}
        for component in self.topology.components:
            if component.is_update or self._is_fed_in_stage(component):
                continue
            for grouping in component.inputs:
                in_time = self.phases[grouping.source] is WorkPhase.PROCESSING and component.id in self.stage_of
                stage = self.stage_of[component.id] if in_time else COMMIT_STAGE
                edge = StageEdge(grouping.source, component.id, grouping, stage, component.parallelism)
                edges[grouping.source] = (*edges.get(grouping.source, ()), edge)
        return edges

    def _is_fed_in_stage(self, component: Component) -> bool:
        """Return whether a component gets its input inside its stage."""
        stage = self.stage_of.get(component.id)
        return stage is not None and self.chains[stage][0] != component.id


def _updates_by_source(updates: list[Component]) -> dict[str, tuple[str, ...]]:
    aggregated: dict[str, tuple[str, ...]] = {}
    for component in updates:
        source = component.inputs[0].source
        aggregated[source] = (*aggregated.get(source, ()), component.id)
    return aggregated
