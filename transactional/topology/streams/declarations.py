"""`Declarations`: all that a program has declared on a topology so far, its graph and its states.

Streams refer to it, so that an operation can be checked against the topology where it is called.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transactional.core.ports import Sink, State
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.stored_values import read_identity
from transactional.topology.locations import table_of
from transactional.topology.streams.graph import Persisted, Repartition, SinkEnd, StreamGraph, StreamNode
from transactional.topology.wiring import check_id, check_parallelism

_UNNAMED = "memory"
"""The name of tables in memory. Several may have it, as nothing of them lasts."""


@dataclass(frozen=True, slots=True)
class Update:
    """The update of a state: its own one, or a bolt that emits `output`."""

    bolt: Any
    state: State
    output: Schema | None = None


class Declarations:
    """Everything that has been declared on a topology."""

    def __init__(self, topology_id: str, *, queried: Declarations | None = None, query: str = "") -> None:
        self.topology_id, self.graph = topology_id, StreamGraph()
        self.event_times: dict[str, str] = {}
        """The field with the event time, by stream of the spout."""
        self.queried, self.query = queried, query
        """The topology that a query reads, and the name of the query. None and empty in a topology."""

    def __str__(self) -> str:
        return f"query {self.query!r}" if self.queried is not None else f"topology {self.topology_id!r}"

    def persist(
        self, operation: str, update: Update, source: StreamNode, cut: Repartition, name: str | None
    ) -> Persisted:
        """Add the committer of a state. Raises `ConfigError` if the state, or its name, has been used."""
        if self.queried is not None:
            raise ConfigError(f"{operation}: {self} only reads; keep a state in the topology itself")
        committer = self._committer_id(operation, update.state, name)
        persisted = Persisted(committer, update.bolt, update.state, source.number, cut, update.output)
        self.graph.persisted.append(persisted)
        return persisted

    def publish(self, sink: Sink, source: StreamNode, name: str, tasks: int | None) -> None:
        """Add a sink. Raises `ConfigError` if it is none, or if its name has been used."""
        if self.queried is not None:
            raise ConfigError(f"sink_to: {self} only reads; publish from the topology itself")
        if not isinstance(sink, Sink):
            raise ConfigError(f"sink_to takes a sink such as KafkaSink('host:9092', 'topic'); got {sink!r}")
        check_id("sink", name)
        if name in self._names():
            raise ConfigError(f"sink_to: {name!r} is the name of a state, of another sink, or of a stream")
        if tasks is not None:
            check_parallelism(name, tasks)
        self.graph.sinks.append(SinkEnd(name, sink, source.number, tasks))

    def _names(self) -> set[str]:
        """The names of streams, states and sinks."""
        spouts = {node.origin.component for node in self.graph.nodes if node.origin is not None}
        return {*spouts, *(persisted.id for persisted in self.graph.persisted), *(sink.id for sink in self.graph.sinks)}

    def _committer_id(self, operation: str, state: State, name: str | None) -> str:
        """Return the id of a state's committer: the given name, or the name of its table."""
        table = table_of(state)
        for other_committer in self.graph.persisted:
            if table_of(other_committer.state) == table:
                raise ConfigError(
                    f"{operation}: the state of {other_committer.id!r} keeps the same table; give each its own"
                )
        used_names = self._names()
        if name is not None:
            check_id("state", name)
            if name in used_names:
                raise ConfigError(f"{operation}: {name!r} is the name of another state, or of a stream")
            return name
        table_name = default_committer_id(state)
        if table_name in used_names and table_name == _UNNAMED:
            return next(
                numbered for n in range(2, len(used_names) + 3) if (numbered := f"{table_name}-{n}") not in used_names
            )
        if table_name in used_names:
            raise ConfigError(
                f"{operation}: the state would be called {table_name!r}, as its table is, and that is the name of "
                "another state, or of a stream; pass name='…'"
            )
        return table_name


def check_state(operation: str, state: Any) -> None:
    """Raise `ConfigError` unless the argument is a state."""
    if not isinstance(state, State):
        argument = f"the class {state.__name__}" if isinstance(state, type) else repr(state)
        raise ConfigError(f"{operation} takes a state such as DeltaMapState('tables/words'); got {argument}")


def default_committer_id(state: State) -> str:
    """Return the last part of the name or path of the table of a state, as an id."""
    identity = read_identity(state)
    identity_values = [text for name, text in identity.items() if name not in ("key", "values", "kind")]
    name = identity.get("table") or identity_values[0].rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "state"
