"""`as_of`: tables of a topology as they all were after one committed transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import pyarrow as pa

from transactional.attempt import TxId
from transactional.loading import open_for_reading
from transactional.queries.pinning import Tables
from transactional.store import StoreReader
from transactional.topology.topology import Topology


class Snapshot(Mapping[str, pa.Table]):
    """Key and value columns of a topology's tables, by the ids of their committers. A table is read when it is
    accessed. `txid` is the transaction after which they were so."""

    def __init__(self, tables: Tables, txid: TxId) -> None:
        self.txid, self._tables = txid, tables

    def __getitem__(self, committer: str) -> pa.Table:
        if committer not in self._tables.readers:
            raise KeyError(committer)
        return self._tables.rows(committer, self.txid)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables.readers)

    def __len__(self) -> int:
        return len(self._tables.readers)


@contextmanager
def as_of(topology: Topology, store: str | StoreReader, txid: int | None = None) -> Iterator[Snapshot]:
    """All tables of a topology as of one committed transaction, the newest one by default, whatever is written
    meanwhile: `with as_of(topology, "sqlite:///words.db") as snapshot: snapshot["counts"].to_pylist()`.

    `store` is the coordinator's store, or its URL. An older transaction can be read from Delta tables as long as their
    logs and files are kept. Raises `ConfigError` for a transaction that is not committed, `OperatingError` for one that
    a table no longer knows.
    """
    opened = open_for_reading(store) if isinstance(store, str) else None
    try:
        tables = Tables.of(topology, opened or store, [component.id for component in topology.committers])  # type: ignore[arg-type]
        with closing(tables):
            yield Snapshot(tables, tables.pin(txid=None if txid is None else TxId(txid)))
    finally:
        if opened is not None:
            opened.close()
