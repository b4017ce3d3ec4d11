"""`as_of`: tables of a topology as they all were after one committed transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from types import TracebackType
from typing import Any

import pyarrow as pa

from transactional.core.store import StoreReader
from transactional.model.attempt import TxId
from transactional.operations.loading import check_topology, open_for_reading
from transactional.operations.queries.pinning import Tables
from transactional.operations.queries.showing import notebook_view
from transactional.operations.queries.sink_tables import SinkTables
from transactional.topology.topology import Topology


class Snapshot(Mapping[str, pa.Table]):
    """The key and value columns of a topology's tables as they were after transaction `txid`, by the ids of their
    committers, and the rows of tables to which sinks append, by the names of the sinks. A table is read when it is
    accessed; that of a sink waits until the transaction is published."""

    def __init__(self, tables: Tables, sink_tables: SinkTables, txid: TxId) -> None:
        self.txid, self._tables, self._sink_tables = txid, tables, sink_tables

    def __getitem__(self, name: str) -> pa.Table:
        if name in self._sink_tables.sinks:
            return self._sink_tables.read_rows(name)
        if name not in self._tables.readers:
            raise KeyError(name)
        return self._tables.rows(name, self.txid)

    def __iter__(self) -> Iterator[str]:
        return iter((*self._tables.readers, *self._sink_tables.sinks))

    def __len__(self) -> int:
        return len(self._tables.readers) + len(self._sink_tables.sinks)

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return notebook_view({f"{name} as of transaction {self.txid}": table for name, table in self.items()})


class AsOf(AbstractContextManager[Snapshot]):
    """The context that `as_of` returns, whose `with` block has the `Snapshot`. In a notebook it shows the first rows of
    each table, and leaves nothing open."""

    def __init__(self, topology: Topology, store: str | StoreReader, txid: int | None) -> None:
        self._topology, self._store, self._txid = topology, store, txid
        self._open = ExitStack()

    def __enter__(self) -> Snapshot:
        topology, txid = self._topology, None if self._txid is None else TxId(self._txid)
        with ExitStack() as opened:
            store = self._store
            if isinstance(store, str):
                store = opened.enter_context(closing(open_for_reading(store)))
            committers = [component.id for component in topology.committers]
            tables = opened.enter_context(closing(Tables.open(topology, store, committers)))
            pinned_txid = tables.pin(txid=txid)
            snapshot = Snapshot(tables, SinkTables.of_topology(topology, store, pinned_txid), pinned_txid)
            self._open.push(opened.pop_all())
            return snapshot

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        """Read the tables, and return the first rows of each as HTML and as text."""
        with self as snapshot:
            return snapshot._repr_mimebundle_()


def as_of(topology: Topology, store: str | StoreReader, txid: int | None = None) -> AsOf:
    """Read all tables of a topology as of one committed transaction, by default the newest, whatever is written
    meanwhile: `with as_of(topology, "sqlite:///words.db") as snapshot: snapshot["counts"].to_pylist()`.

    `store` is the coordinator's store, or its URL. An older transaction can be read from Delta tables as long as their
    logs and files are kept. Entering it raises `ConfigError` for a transaction that is not committed, `OperatingError`
    for one that a table no longer knows.
    """
    check_topology("what as_of is given", topology)
    return AsOf(topology, store, txid)
