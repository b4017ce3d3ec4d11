"""`SqlStoreReader`: the coordinator's store in SQLite or PostgreSQL, for those who only look; it is never changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Executable, Row

from transactional.core.store import AttemptRecord, AttemptTimes, Desired, Position, TopologyStatus
from transactional.core.store.history import MinuteRecord, RunRecord, Savepoint
from transactional.core.store.outbox import OutboxRow, SinkProgress
from transactional.core.store.rules import letters_in
from transactional.core.store.sql import history, outbox, rewinding
from transactional.core.store.sql import statements as sql
from transactional.core.store.sql.rows import (
    desired_in,
    minute_of,
    part_of,
    readable,
    record_of,
    run_of,
    status_of,
    times_of,
    whole,
)
from transactional.core.store.sql.schema import StoreDatabase
from transactional.model.attempt import NO_TRANSACTION, AttemptId, TxId

RecordT = TypeVar("RecordT")
_LAST: Final = 2**63 - 1


class SqlStoreReader:
    """The coordinator's store in a database, for reading. `url` and `timeout_ms` are those of `SqlCoordinatorStore`.

    The database itself refuses writes, so a user or a role that may only read suffices.
    Raises `ConfigError` for a database that has no store, or one of another schema version.
    """

    def __init__(self, url: str = "sqlite:///transactional.db", *, timeout_ms: int = 3_000) -> None:
        self._database = StoreDatabase(url, timeout_ms=timeout_ms, read_only=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._database)!r})"

    @property
    def storage_path(self) -> str | None:
        """The path of a SQLite file."""
        return self._database.file

    def desired(self, topology_id: str) -> Desired:
        """A topology's current desired state."""
        with self._database.reading() as connection:
            row = connection.execute(sql.DESIRED, {"topology": topology_id}).one_or_none()
            return Desired() if row is None else desired_in(row)

    def txid_of(self, topology_id: str, component_id: str, attempt_id: AttemptId) -> TxId | None:
        """The txid that a table of this component is at when its version is `attempt_id`; None: unknown id."""
        key = {"topology": topology_id, "component": component_id, "id": attempt_id}
        with self._database.reading() as connection:
            txid = connection.execute(sql.TXID_OF, key).scalar()
            with readable(f"attempt {attempt_id} of component {component_id!r} of topology {topology_id!r}"):
                return None if txid is None else TxId(whole(txid))

    def has_fence(self, topology_id: str, component_id: str) -> bool:
        """Whether a fence was ever recorded for this component."""
        key = {"topology": topology_id, "component": component_id}
        with self._database.reading() as connection:
            return bool(connection.execute(sql.HAS_FENCE, key).scalar())

    def position(self, topology_id: str) -> Position | None:
        """Return the position of a topology."""
        rows = self._database.answer(sql.POSITION, {"topology": topology_id})
        if not rows:
            return None
        [(committed_txid, rewinding_to, store_id)] = rows
        with self._database.naming(), readable(f"the row of topology {topology_id!r} in transactional_topologies"):
            target = None if rewinding_to is None else TxId(whole(rewinding_to))
            return Position(TxId(whole(committed_txid)), target, store_id)

    def status(self, topology_id: str | None = None) -> list[TopologyStatus]:
        """Return the status of all topologies, or of the named one, in order of their ids."""
        key = {} if topology_id is None else {"topology": topology_id}
        return self._records(status_of, sql.STATUS if topology_id is None else sql.STATUS_OF_ONE, key)

    def attempts(self, topology_id: str, *, limit: int) -> list[AttemptRecord]:
        """The last attempts, newest first."""
        return self._records(record_of, sql.ATTEMPTS, {"topology": topology_id, "most": limit})

    def attempts_at(self, topology_id: str, txid: TxId) -> list[AttemptRecord]:
        """Return all stored attempts at one transaction, newest first."""
        return self._records(record_of, sql.ATTEMPTS_AT, {"topology": topology_id, "number": txid})

    def times(
        self, topology_id: str, *, limit: int, before: AttemptId | None = None, phases: Collection[str] = ()
    ) -> list[AttemptTimes]:
        """The last attempts without their batches, newest first."""
        key: dict[str, Any] = {"topology": topology_id, "most": limit, "before": _LAST if before is None else before}
        if phases:
            return self._records(times_of, sql.TIMES_IN, {**key, "phases": sorted(phases)})
        return self._records(times_of, sql.TIMES, key)

    def times_with_letters(self, topology_id: str, *, among: int, limit: int) -> list[AttemptTimes]:
        """Return those of the last `among` committed attempts that have set tuples aside, newest first."""
        key = {"topology": topology_id, "before": _LAST, "among": among, "most": limit}
        attempts = self._records(times_of, sql.TIMES_WITH_LETTERS, key)
        return [attempt for attempt in attempts if letters_in(attempt.details)]

    def runs(self, topology_id: str, *, limit: int) -> list[RunRecord]:
        """The last runs, newest first."""
        return self._records(run_of, history.RUNS, {"topology": topology_id, "most": limit})

    def savepoints(self, topology_id: str) -> list[Savepoint]:
        """The savepoints, oldest transaction first."""
        rows = self._rows(rewinding.SAVEPOINTS, {"topology": topology_id})
        with self._database.naming(), readable("a row of transactional_savepoints"):
            return [Savepoint(row.name, TxId(whole(row.txid)), whole(row.noted_at_ms)) for row in rows]

    def minutes(self, topology_id: str, *, since_ms: int, each_ms: int | None = None) -> list[MinuteRecord]:
        """The minutes that started at or after `since_ms`, oldest first; summed up by parts of `each_ms`."""
        key = {"topology": topology_id, "since_ms": since_ms}
        if each_ms is not None:
            rows = self._rows(history.MINUTES_SUMMED_UP, {**key, "each_ms": each_ms})
            with self._database.naming():
                return [part_of(row, since_ms, each_ms) for row in rows]
        return self._records(minute_of, history.MINUTES, key)

    def sinks(self, topology_id: str) -> Mapping[str, SinkProgress]:
        """How far each sink is that has published something, or has to."""
        key = {"topology": topology_id}
        with self._database.reading() as connection:
            committed = connection.execute(sql.POSITION.query, key).first()
            return outbox.read_progress(
                connection, topology_id, TxId(0 if committed is None else committed.committed_txid)
            )

    def outbox(
        self, topology_id: str, sink: str, *, first: TxId = NO_TRANSACTION, last: TxId, limit: int
    ) -> list[OutboxRow]:
        """The outbox rows of a sink, in order of txid."""
        key = {"topology": topology_id, "named": sink, "first": first, "number": last, "most": limit}
        return self._records(outbox.row_of, outbox.ROWS, key)

    def sink_letters(self, topology_id: str) -> list[OutboxRow]:
        """The records of sinks that were set aside, in order of sink and txid."""
        return self._records(outbox.row_of, outbox.LETTERS, {"topology": topology_id})

    def outbox_in_files(self, topology_id: str) -> list[OutboxRow]:
        """The outbox rows of all sinks whose payload is in a file."""
        return self._records(outbox.row_of, outbox.IN_FILES, {"topology": topology_id})

    def _records(
        self, convert: Callable[[Row[Any]], RecordT], statement: Executable, key: Mapping[str, object]
    ) -> list[RecordT]:
        """Convert the rows of a query. Raises `CorruptRecord`, which names the store, the table and the row."""
        rows = self._rows(statement, key)
        with self._database.naming():
            return [convert(row) for row in rows]

    def _rows(self, statement: Executable, key: Mapping[str, object]) -> Sequence[Row[Any]]:
        """Return all rows of a query. They are made into records afterwards: PostgreSQL ends a transaction in which
        nothing happens for as long as many thousand of them take."""
        with self._database.reading() as connection:
            return connection.execute(statement, dict(key)).all()

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()
