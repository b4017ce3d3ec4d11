"""The tables to which sinks append, read as of one transaction.

A sink publishes after the transaction commit, and each of its rows has its transaction. So a table is read as of a
transaction once the store says that everything up to it is published, and later rows are left out. A rewind takes rows
away, so the store is read again afterwards: the transaction must still be the one that was read as of.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from transactional.core.ports import Sink
from transactional.core.store import StoreReader
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId
from transactional.model.errors import OperatingError
from transactional.runtime.engine.fencing import committed_by
from transactional.topology.topology import Topology

WAIT_S: Final = 30.0
"""Longest wait for a sink to publish the transactions that are read."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class SinkTables:
    """The readable sinks of a topology, by name, as of a transaction. `attempt_id` is the attempt that committed it."""

    topology_id: str
    store: StoreReader
    sinks: Mapping[str, Sink]
    txid: TxId
    attempt_id: AttemptId | None

    @classmethod
    def of_topology(cls, topology: Topology, store: StoreReader, txid: TxId) -> SinkTables:
        """Return the sinks whose rows can be read."""
        sinks = {name: sink for name, sink in topology.sinks.items() if sink.can_read}
        return cls(topology.id, store, sinks, txid, committed_by(store, topology.id, txid) if sinks else None)

    def read_rows(self, name: str) -> pa.Table:
        """Read the rows of a sink, once they are published.

        Raises `OperatingError` if that lasts, or if the transaction is taken back meanwhile.
        """
        until_s = time.monotonic() + WAIT_S
        while (done_txid := self._read_done(name)) < self.txid:
            self._check_committed()
            if time.monotonic() > until_s:
                raise OperatingError(
                    f"topology {self.topology_id!r} can't be read as of transaction {self.txid}: sink {name!r} has "
                    f"published transactions up to {done_txid} only: see `transactional sinks list`"
                )
            threading.Event().wait(POLL_S)
        rows = self.sinks[name].read(self.txid)
        self._check_committed()
        return rows

    def _check_committed(self) -> None:
        """Raise `OperatingError` if the transaction is no longer committed, or was computed again."""
        position = self.store.position(self.topology_id)
        if position is not None:
            last_txid = position.committed_txid if position.rewinding_to is None else position.rewinding_to
            attempt_id = committed_by(self.store, self.topology_id, self.txid)
            if self.txid <= last_txid and attempt_id in (None, self.attempt_id):
                return
        raise OperatingError(
            f"transaction {self.txid} of topology {self.topology_id!r} was taken back, or is being taken back, while "
            "tables were read as of it: read them again when that is done"
        )

    def _read_done(self, name: str) -> TxId:
        progress = self.store.sinks(self.topology_id).get(name)
        return NO_TRANSACTION if progress is None else progress.done_txid
