"""`StaticState`: a table that others write, and streams look up."""

from __future__ import annotations

from dataclasses import dataclass

from transactional.model.reading import StaticTable
from transactional.topology.streams.declarations import Declarations


@dataclass(frozen=True, eq=False, slots=True)
class StaticState:
    """A static table, as `TridentTopology.static_state` returns it, for `state_query`."""

    table: StaticTable
    declarations: Declarations

    def __repr__(self) -> str:
        return f"StaticState({self.table.table!r})"
