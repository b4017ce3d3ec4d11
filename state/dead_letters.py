"""`DeadLetterTable`: a Delta table of the tuples that a topology has set aside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from state.delta.state import DeltaMapState
from state.delta.tables.table import DeltaLocation
from transactional.core.ports.dead_letters import LETTER_KEY, LETTER_VALUES


class DeadLetterTable(DeltaMapState):
    """Where a topology puts tuples that a bolt can't process; see `TransactionalTopologyBuilder.set_dead_letters`.

    One row per tuple, keyed by transaction and number: the component that failed, the source and stream of the tuple,
    the tuple as JSON, and the error with its traceback. Written with the transaction commit, so every tuple is there
    once. `table`, `storage_options` and `properties` are those of a `DeltaMapState`.
    """

    def __init__(
        self,
        table: str | Path | DeltaLocation,
        *,
        storage_options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(table, LETTER_KEY, LETTER_VALUES, storage_options=storage_options, properties=properties)
