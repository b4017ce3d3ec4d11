"""Pins the tables of a topology as of one committed transaction, although they are written one after the other.

While transaction n is the last committed one, every table is at n, or at n+1, which is being written; rows keep their
previous values. Tables are therefore pinned between two reads of the store: if it is at n both times, so were they.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa

from transactional.core.store import Position, StoreReader
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import NO_TRANSACTION, TxId
from transactional.model.errors import ConfigError, OperatingError, QueryFailed
from transactional.model.names import owner_of
from transactional.model.reading import StateReader
from transactional.model.schema import Schema
from transactional.topology.topology import Component, Topology

TRIES = 200
"""The number of commits during pinning after which a question fails."""
QUICK_TRIES = 4
"""The number of tries after which tables with a history are pinned last, as of the transaction that was read."""


@dataclass(slots=True)
class Tables:
    """The tables of some committers, by their ids, opened for reading. One thread at a time may use them."""

    topology_id: str
    store: StoreReader | None
    """The coordinator's store, or None for queries of a topology without states."""
    components: Mapping[str, Component]
    readers: Mapping[str, StateReader]
    _pinned: list[StateReader] = field(default_factory=list)
    _position: Position | None = None
    """The position of the topology when the store was last read."""

    @classmethod
    def open(cls, topology: Topology, store: StoreReader | None, committers: Iterable[str]) -> Tables:
        """Open tables of a topology. Raises `ConfigError` for one that can't be read from outside."""
        component_by_id = {component.id: component for component in topology.committers}
        components = {committer: component_by_id[committer] for committer in committers}
        return cls(topology.id, store, components, _open_readers(topology.id, components))

    def pin(self, committers: Iterable[str] | None = None, txid: TxId | None = None) -> TxId:
        """Pin some of the tables, or all, as of the last committed transaction or `txid`, and return that transaction.

        Raises `ConfigError` for a transaction that is not committed, and for a topology that the store does not know,
        `OperatingError` where a table can't be read, `QueryFailed` if the store never stands still.
        """
        self.release()
        names = list(self.readers if committers is None else committers)
        previous_position = self._read_position()
        for attempt in range(TRIES):
            self._pinned = [self.readers[name] for name in names]
            target_txid = self._choose_txid(txid, previous_position.committed_txid)
            if target_txid == NO_TRANSACTION:
                return target_txid
            has_time = attempt < QUICK_TRIES and target_txid == previous_position.committed_txid
            for reader in self._pinned:
                if has_time or not reader.has_history:
                    reader.pin()
            position = self._read_position()
            if position == previous_position:
                if not has_time:
                    self._pin_history(target_txid, previous_position.committed_txid)
                return target_txid
            previous_position = position
        raise QueryFailed(
            f"topology {self.topology_id!r} committed {TRIES} transactions while its tables were being opened: none "
            "of these moments could be held"
        )

    def _choose_txid(self, txid: TxId | None, committed: TxId) -> TxId:
        if txid is None:
            return committed
        if not 0 < txid <= committed:
            raise ConfigError(
                f"topology {self.topology_id!r} has committed transaction {committed}, so it can't be read as of {txid}"
            )
        return txid

    def _pin_history(self, target_txid: TxId, committed: TxId) -> None:
        for reader in self._pinned:
            if reader.has_history:
                reader.pin(target_txid)
            elif target_txid != committed:
                raise OperatingError(
                    f"topology {self.topology_id!r} can't be read as of transaction {target_txid}: it keeps a state "
                    f"that has no history, and is at {committed}"
                )

    def _read_position(self) -> Position:
        """Read the topology's position. Tables that may have been replaced since are opened again.

        Raises `OperatingError` while tables are put back to an earlier transaction.
        """
        if self.store is None:
            return Position(NO_TRANSACTION)
        position = self.store.position(self.topology_id)
        if position is None:
            raise ConfigError(f"the store does not know topology {self.topology_id!r}: it has never run with it")
        if position.rewinding_to is not None:
            raise OperatingError(
                f"topology {self.topology_id!r} is being rewound to transaction {position.rewinding_to}: query it "
                "when that is done"
            )
        if self._position is not None and not position.can_follow(self._position):
            self.close()
            self.readers = _open_readers(self.topology_id, self.components)
        self._position = position
        return position

    def lookup(self, committer: str, txid: TxId, keys: pa.Table) -> pa.Table:
        """Read the rows of a pinned table with these keys, maybe more; none before the first transaction."""
        return self._read(committer, txid, lambda reader: reader.lookup(txid, keys))

    def rows(self, committer: str, txid: TxId) -> pa.Table:
        """Read all rows of a pinned table."""
        return self._read(committer, txid, lambda reader: reader.rows(txid))

    def _read(self, committer: str, txid: TxId, read: Callable[[StateReader], pa.Table]) -> pa.Table:
        """Read a table, and append the columns that are computed on reading. Before the first transaction there may be
        no table: then there are no rows."""
        component = self.components[committer]
        if txid != NO_TRANSACTION:
            return component.computed.append_to(read(self.readers[committer]))
        assert component.state is not None
        stored = Schema((*component.state.key, *component.state.values))
        return component.computed.append_to(arrow_schema(stored).empty_table())

    def release(self) -> None:
        """Unpin all tables."""
        pinned, self._pinned = self._pinned, []
        with ExitStack() as stack:
            for reader in pinned:
                stack.callback(reader.release)

    def close(self) -> None:
        """Close the readers of all tables."""
        with ExitStack() as stack:
            for reader in self.readers.values():
                stack.callback(reader.close)


def _open_readers(topology_id: str, components: Mapping[str, Component]) -> Mapping[str, StateReader]:
    """Open the readers of the states, by the ids of their committers."""
    states = {committer: component.state for committer, component in components.items() if component.state is not None}
    return {
        committer: state.parts.reading.reader(owner_of(topology_id, committer)) for committer, state in states.items()
    }
