"""What a rewind looks at once more when it has the lease: until then, somebody else could go on."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state import SqlMapState
from tests.rewinding import build, run, store_url
from transactional.core.ports.spout_parts import SourceExamination, SpoutParts
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import BeyondKept
from transactional.model.attempt import TxId
from transactional.model.batch import BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.runtime.engine.rewinding import describe_rereading, rewind
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


WORDS = PartitionId("memory", 0)


def offsets(start: int, until: int) -> OffsetRange:
    return OffsetRange(Offset(start), Offset(until))


class From(MemoryTransactionalSpout, SourceExamination):
    """Its source holds what comes from an offset on."""

    def __init__(self, start: int) -> None:
        super().__init__([[]], "word string", 1)
        self.start = start

    @property
    def parts(self) -> SpoutParts:
        return replace(super().parts, examination=self)

    def read_held_ranges(self, partitions: Any) -> Any:
        return dict.fromkeys(partitions, offsets(self.start, 9))


def test_a_transactional_spout_reads_again_from_where_the_log_begins_and_not_from_before() -> None:
    """The next record is the log's first: nothing is lost."""
    before, after = BatchMetadata({WORDS: offsets(6, 8)}), BatchMetadata({WORDS: offsets(2, 4)})
    assert describe_rereading(From(4), before, after) == [
        "memory[0]: read again from offset 4; it had been read up to 8"
    ]
    with pytest.raises(BeyondKept, match=r"no longer holds what is before offset 5, and offset 4 would come next"):
        describe_rereading(From(5), before, after)
