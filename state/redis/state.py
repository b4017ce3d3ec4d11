"""`RedisMapState`: a state in a Redis server, exactly once, fenced against dead coordinators.

The version is the attempt id of the table's last writer. Each transaction is one script, which compares the version
with the one that was read, and writes rows, and last the version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from state.declared import DeclaredTable
from state.examined import ExaminedTable
from state.redis.reading import RedisReader
from state.redis.registration import RedisRegistration
from state.redis.server import Server
from state.redis.table import RedisRows
from state.redis.values import RowCodec
from state.row_table import RowTable
from state.rows.going_back import describe_rewind
from state.rows.value_limits import ValueLimits
from state.table_state import TableState
from transactional.core.ports import StateKind
from transactional.core.ports.examining import TableAddress
from transactional.core.ports.state_parts import Durability, Rewind, RewindTarget, StateParts, TableExamination
from transactional.model.attempt import AttemptId, TxId
from transactional.model.durations import Duration
from transactional.model.errors import ConfigError, SchemaMismatch, StoreMismatch
from transactional.model.names import owner_of
from transactional.model.plumbing.redaction import without_login


class RedisMapState(TableState[RowTable], Durability, Rewind, TableExamination):
    """Key → values in a Redis server: one field of a hash per key, with the transaction that wrote it and what was
    before.

    `url` is `redis://user:password@host:6379/0`, `rediss://…` with TLS, or `unix://path`. `key` is a name, several
    names, or a DDL string with types (`carrier string`); () is a state of one row; it is omitted if an update names it
    with `group_by`. `values` is a DDL string; it is left out when the state is updated by `.count()`, `.sum(…)` and so
    on. With `deletes` keys can be deleted. With `expires`, the name of a timestamp column of key or values, and
    `after`, an age like `"30 days"`, a row goes once that column is so much before the time at which a batch was
    planned; the server's own clock decides nothing. No wait for the server takes longer than `timeout_ms`.

    The server needs `appendonly yes` and `appendfsync always`, unless the run has `durability = process`. Reading the
    whole state is one command, during which the server answers nobody else.

    Raises `ConfigError` for URLs, names and types that can't hold a state.
    """

    _writes_in_parts = RedisRows.writes_in_parts
    rewind_obstacle = ""

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] | None = None,
        values: str = "",
        *,
        kind: StateKind = StateKind.OPAQUE,
        timeout_ms: int = 30_000,
        deletes: bool = False,
        expires: str | None = None,
        after: Duration | None = None,
    ) -> None:
        self._location, self._table_name, self._durability = without_login(url), table, "disk"
        name = f"{table!r} in {self._location}"
        options: dict[str, Any] = {"deletes": deletes, "expires": expires, "after": after}
        super().__init__(
            name, key, values, kind=kind, value_limits=ValueLimits(name), check_types=_check_types, **options
        )
        if not table.strip() or "{" in table or "}" in table:
            raise ConfigError(f"state {self.declared.table}: a name in Redis must not be empty and has no braces")
        self._url, self._timeout_ms = url, timeout_ms
        self._server = Server(url, self.declared.table, timeout_ms=timeout_ms)

    def __repr__(self) -> str:
        return f"RedisMapState({self.declared.table})"

    @property
    def parts(self) -> StateParts:
        """The parts of the state: it can go back by one transaction, and checks how durable the server is."""
        return replace(super().parts, durability=self, rewind=self, examination=self)

    def identity(self) -> Mapping[str, str]:
        """Server without user and password, table, key, values, kind."""
        return self.declared.identity(redis=self._location, table=self._table_name)

    def set_durability(self, durability: str) -> None:
        """What `open` requires of the server."""
        self._durability = durability

    def load_table(self) -> RowTable:
        """Create the table, or check the existing one.

        Raises `ConfigError` for a server that may lose what it confirms, and for a user who may not write there,
        `SchemaMismatch` for a table of another shape, `StoreMismatch` for one with rows of another owner.
        """
        self._server.check(self._durability)
        rows = self._stored_rows(self.owner)
        rows.open(self.store_id)
        return RowTable(rows, self.declared)

    def all_rows(self, committed_txid: TxId | None) -> pa.Table:
        return self._stored_rows("").visible_rows(
            committed_txid, None if self.declared.expiry is None else self.declared.expiry.column
        )

    def address(self) -> TableAddress:
        """The server, with the login, and the table in it."""
        return TableAddress.of("redis", self._url, self.declared.columns, self._table_name, expiry=self.declared.expiry)

    def examine(self, topology_id: str, component_id: str) -> ExaminedTable:
        """The table as the doctor sees it. Raises `OperatingError`, `ConfigError` when the server refuses."""
        try:
            found = self._registration(owner_of(topology_id, component_id)).check()
        except (SchemaMismatch, StoreMismatch) as error:
            return ExaminedTable(self.declared.table, component_id, refusal=error)
        finally:
            if self._opened is None:
                self._server.close()
        if found is None:
            return ExaminedTable(self.declared.table, component_id)
        version, rewound_to, store_id = found.version, found.rewound_to, found.store_id
        return ExaminedTable(self.declared.table, component_id, version, rewound_to=rewound_to, store_id=store_id)

    def reader(self, owner: str) -> RedisReader:
        """A reader of the table of `<topology>/<component>`, with a connection of its own (see the port)."""
        server = Server(self._url, self.declared.table, timeout_ms=self._timeout_ms)
        return RedisReader(server, self._table_name, self.declared.columns, owner=owner, name=self.declared.table)

    def preview_rewind(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """What going back would undo (see the port): one transaction, the newest, at most."""
        rows = self._stored_rows(owner_of(topology_id, component_id))
        found = rows.check()
        transaction = RowTable(rows, self.declared).transaction_to_undo(
            None if found is None else found.version, target
        )
        return describe_rewind(self.declared.table, transaction)

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Undo the newest transaction, under a new fence, in one script (see the port)."""
        self.rewind_by(fence_id, lambda table: table.rewind(target, fence_id))

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._server.close()

    def _registration(self, owner: str) -> RedisRegistration:
        return RedisRegistration(
            self._server, self._table_name, self.declared.columns, owner=owner, name=self.declared.table
        )

    def _stored_rows(self, owner: str) -> RedisRows:
        return RedisRows(self._server, self._table_name, self.declared.columns, owner=owner, name=self.declared.table)


def _check_types(declared: DeclaredTable) -> None:
    if declared.are_complete:
        RowCodec(declared.key, declared.values, declared.table)
