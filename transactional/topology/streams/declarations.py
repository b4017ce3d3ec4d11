"""`Declarations`: what has been declared on a topology so far: its graph, and the states, each with its name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transactional.core.ports import State
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.topology.locations import table_of
from transactional.topology.streams.graph import Cut, Persisted, StreamGraph, StreamNode
from transactional.topology.wiring import check_id

_UNNAMED = "memory"
"""What tables in memory are called; they need no name that stays."""


@dataclass(frozen=True, slots=True)
class Update:
    """What keeps a state up to date: a state's own update, or a bolt that emits `output`."""

    bolt: Any
    state: State
    output: Schema | None = None


class Declarations:
    """Everything that has been declared on a topology."""

    def __init__(self, topology_id: str, *, queried: Declarations | None = None, query: str = "") -> None:
        self.topology_id, self.graph = topology_id, StreamGraph()
        self.event_times: dict[str, str] = {}
        """By stream of the spout, its field with the event time."""
        self.queried, self.query = queried, query
        """Of a query: the topology that is queried, and its name."""

    def __str__(self) -> str:
        return f"query {self.query!r}" if self.queried is not None else f"topology {self.topology_id!r}"

    def persist(self, operation: str, update: Update, source: StreamNode, cut: Cut, name: str | None) -> Persisted:
        """Add the committer of a state. Raises `ConfigError` if the state, or its name, has been used."""
        if self.queried is not None:
            raise ConfigError(f"{operation}: {self} only reads; keep a state in the topology itself")
        committer = self._committer(operation, update.state, name)
        persisted = Persisted(committer, update.bolt, update.state, source.number, cut, update.output)
        self.graph.persisted.append(persisted)
        return persisted

    def _committer(self, operation: str, state: State, name: str | None) -> str:
        """The id of a state's committer: the name that was given, or that of its table."""
        table = table_of(state)
        for other in self.graph.persisted:
            if table_of(other.state) == table:
                raise ConfigError(f"{operation}: the state of {other.id!r} keeps the same table; give each its own")
        spouts = {node.origin.component for node in self.graph.nodes if node.origin is not None}
        taken = {*spouts, *(persisted.id for persisted in self.graph.persisted)}
        if name is not None:
            check_id("state", name)
            if name in taken:
                raise ConfigError(f"{operation}: {name!r} is the name of another state, or of a stream")
            return name
        found = name_of_table(state)
        if found in taken and found == _UNNAMED:
            return next(free for n in range(2, len(taken) + 3) if (free := f"{found}-{n}") not in taken)
        if found in taken:
            raise ConfigError(
                f"{operation}: the state would be called {found!r}, as its table is, and that is the name of another "
                "state, or of a stream; pass name='…'"
            )
        return found


def check_state(operation: str, state: Any) -> None:
    """Raise `ConfigError` for something else than a state."""
    if not isinstance(state, State):
        what = f"the class {state.__name__}" if isinstance(state, type) else repr(state)
        raise ConfigError(f"{operation} takes a state such as DeltaMapState('tables/words'); got {what}")


def name_of_table(state: State) -> str:
    """What a committer is called after: the last part of the name or path of its table."""
    identity = state.identity()
    own = [value for name, value in identity.items() if name not in ("key", "values", "kind")]
    name = identity.get("table") or own[0].rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "state"
