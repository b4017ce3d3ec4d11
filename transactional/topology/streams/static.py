"""`StaticState`: a table of others that streams look up."""

from __future__ import annotations

from dataclasses import dataclass

from transactional.model.reading import StaticTable
from transactional.topology.streams.declarations import Declarations


@dataclass(frozen=True, eq=False, slots=True)
class StaticState:
    """What `TridentTopology.static_state` returns, for `state_query`."""

    table: StaticTable
    declarations: Declarations

    def __repr__(self) -> str:
        return f"StaticState({self.table.table!r})"
