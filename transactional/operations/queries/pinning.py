"""The tables of a topology as of one committed transaction, although they are written one after the other.

While transaction n is the committed one, every table is at n, or at n+1, which is being written; rows keep what was
before. So tables are pinned between two looks at the store: if it stands at n both times, so did they.
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
"""So often the store may move on while tables are pinned."""
QUICK_TRIES = 4
"""After so many, tables with a history are pinned last, where they were."""


@dataclass(slots=True)
class Tables:
    """The tables of some committers, by their ids, opened for reading. For one thread at a time."""

    topology_id: str
    store: StoreReader | None
    """None for queries of a topology that keeps no states."""
    components: Mapping[str, Component]
    readers: Mapping[str, StateReader]
    _pinned: list[StateReader] = field(default_factory=list)
    _position: Position | None = None
    """Where the topology stood when the store was read last."""

    @classmethod
    def of(cls, topology: Topology, store: StoreReader | None, committers: Iterable[str]) -> Tables:
        """Those of a topology. Raises `ConfigError` for one that can't be read from outside."""
        every = {component.id: component for component in topology.committers}
        components = {each: every[each] for each in committers}
        return cls(topology.id, store, components, _open_readers(topology.id, components))

    def pin(self, committers: Iterable[str] | None = None, txid: TxId | None = None) -> TxId:
        """Pin some of the tables, or all: as of the committed transaction, or of `txid`; as of which one.

        Raises `ConfigError` for a transaction that is not committed, and for a topology that the store does not know,
        `OperatingError` where a table can't be read, `QueryFailed` if the store never stands still.
        """
        self.release()
        names = list(self.readers if committers is None else committers)
        before = self._find_position()
        for tried in range(TRIES):
            self._pinned = [self.readers[each] for each in names]
            wanted = self._checked(txid, before.committed_txid)
            if wanted == NO_TRANSACTION:
                return wanted
            has_time = tried < QUICK_TRIES and wanted == before.committed_txid
            for reader in self._pinned:
                if has_time or not reader.has_history:
                    reader.pin()
            after = self._find_position()
            if after == before:
                if not has_time:
                    self._pin_history(wanted, before.committed_txid)
                return wanted
            before = after
        raise QueryFailed(
            f"topology {self.topology_id!r} committed {TRIES} transactions while its tables were being opened: none "
            "of these moments could be held"
        )

    def _checked(self, txid: TxId | None, committed: TxId) -> TxId:
        if txid is None:
            return committed
        if not 0 < txid <= committed:
            raise ConfigError(
                f"topology {self.topology_id!r} has committed transaction {committed}, so it can't be read as of {txid}"
            )
        return txid

    def _pin_history(self, wanted: TxId, committed: TxId) -> None:
        for reader in self._pinned:
            if reader.has_history:
                reader.pin(wanted)
            elif wanted != committed:
                raise OperatingError(
                    f"topology {self.topology_id!r} can't be read as of transaction {wanted}: it keeps a state that "
                    f"has no history, and is at {committed}"
                )

    def _find_position(self) -> Position:
        """Where the topology stands. Tables that may be other ones by now are opened again.

        Raises `OperatingError` while tables are put back to an earlier transaction.
        """
        if self.store is None:
            return Position(NO_TRANSACTION)
        found = self.store.position(self.topology_id)
        if found is None:
            raise ConfigError(f"the store does not know topology {self.topology_id!r}: it has never run with it")
        if found.rewinding_to is not None:
            raise OperatingError(
                f"topology {self.topology_id!r} is being rewound to transaction {found.rewinding_to}: query it "
                "when that is done"
            )
        if self._position is not None and not found.can_follow(self._position):
            self.close()
            self.readers = _open_readers(self.topology_id, self.components)
        self._position = found
        return found

    def lookup(self, committer: str, txid: TxId, keys: pa.Table) -> pa.Table:
        """The rows of a pinned table with these keys, maybe more; none before the first transaction."""
        return self._read(committer, txid, lambda reader: reader.lookup(txid, keys))

    def rows(self, committer: str, txid: TxId) -> pa.Table:
        """All rows of a pinned table."""
        return self._read(committer, txid, lambda reader: reader.rows(txid))

    def _read(self, committer: str, txid: TxId, read: Callable[[StateReader], pa.Table]) -> pa.Table:
        """With the columns that are computed when rows are read. Before the first transaction there may be no table."""
        component = self.components[committer]
        if txid != NO_TRANSACTION:
            return component.computed.append_to(read(self.readers[committer]))
        assert component.state is not None
        stored = Schema((*component.state.key, *component.state.values))
        return component.computed.append_to(arrow_schema(stored).empty_table())

    def release(self) -> None:
        """Let go of what is pinned."""
        pinned, self._pinned = self._pinned, []
        with ExitStack() as stack:
            for reader in pinned:
                stack.callback(reader.release)

    def close(self) -> None:
        """Close all readers."""
        with ExitStack() as stack:
            for reader in self.readers.values():
                stack.callback(reader.close)


def _open_readers(topology_id: str, components: Mapping[str, Component]) -> Mapping[str, StateReader]:
    """The readers of the states, by their committers."""
    states = {each: component.state for each, component in components.items() if component.state is not None}
    return {each: state.reader(owner_of(topology_id, each)) for each, state in states.items()}
