"""The tables to which sinks append, read as of one transaction.

A sink publishes after the transaction commit, and each of its rows has its transaction. So a table is read as of a
transaction once the store says that everything up to it is published, and later rows are left out.
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
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.errors import OperatingError
from transactional.topology.topology import Topology

WAIT_S: Final = 30.0
"""Longest wait for a sink to publish the transactions that are read."""
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class SinkTables:
    """The readable sinks of a topology, by name."""

    topology_id: str
    store: StoreReader
    sinks: Mapping[str, Sink]

    @classmethod
    def of_topology(cls, topology: Topology, store: StoreReader) -> SinkTables:
        """Return the sinks whose rows can be read."""
        return cls(topology.id, store, {name: sink for name, sink in topology.sinks.items() if sink.can_read})

    def read_rows(self, name: str, txid: TxId) -> pa.Table:
        """Read the rows of transactions up to one, once they are published. Raises `OperatingError` if that lasts."""
        until_s = time.monotonic() + WAIT_S
        while (done_txid := self._read_done(name)) < txid:
            if time.monotonic() > until_s:
                raise OperatingError(
                    f"topology {self.topology_id!r} can't be read as of transaction {txid}: sink {name!r} has "
                    f"published transactions up to {done_txid} only: see `transactional sinks list`"
                )
            threading.Event().wait(POLL_S)
        return self.sinks[name].read(txid)

    def _read_done(self, name: str) -> TxId:
        progress = self.store.sinks(self.topology_id).get(name)
        return NO_TRANSACTION if progress is None else progress.done_txid
