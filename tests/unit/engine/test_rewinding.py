"""What a rewind looks at once more when it has the lease: until then, somebody else could go on."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from state import SqlMapState
from state.store.sql_store import SqlCoordinatorStore
from tests.rewinding import build, run, store_url
from transactional.attempt import TxId
from transactional.engine.rewinding import rewind
from transactional.errors import BeyondKept
from transactional.store import Lease
from transactional.topology.topology import Topology


def test_one_that_was_overtaken_and_is_out_of_reach_is_not_begun(tmp_path: Path) -> None:
    """A table in a database knows what was before its newest transaction, and no more: what was within reach is not."""

    def topology(transactions: int) -> Topology:
        def state(name: str, key: str, values: str = "", *, deletes: bool = False) -> Any:
            return SqlMapState(f"sqlite:///{tmp_path}/states.db", name, key, values, deletes=deletes)

        return build(tmp_path, state, transactions=transactions, letters=False)

    class Overtaken(SqlCoordinatorStore):
        def acquire(self, *given: Any, **named: Any) -> Lease:
            run(topology(3), store)
            return super().acquire(*given, **named)

    with (
        closing(SqlCoordinatorStore(store_url(tmp_path))) as store,
        closing(Overtaken(store_url(tmp_path))) as overtaken,
    ):
        run(topology(2), store)
        with pytest.raises(BeyondKept, match="is at transaction 3 and knows only what was before it"):
            rewind(topology(3), overtaken, TxId(1), owner="rewinder")
        [status] = store.status()
        assert (status.rewinding_to, status.is_leased) == (None, False)
