"""`QueryClient`: queries a topology from outside, in any process; each answer is as of one committed transaction."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from transactional.core.store import StoreReader
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.zones import naive_times_in
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.errors import (
    AttemptLost,
    BoltFailed,
    ConfigError,
    FailedException,
    NaiveTime,
    QueryFailed,
    SchemaMismatch,
    brief_errors,
)
from transactional.model.facts import BatchFacts, StaticVersion
from transactional.model.schema import did_you_mean
from transactional.operations.loading import check_topology, open_for_reading
from transactional.operations.queries.pinning import Tables
from transactional.operations.queries.showing import notebook_view
from transactional.runtime.engine.clock import SystemClock
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.streams.questions import make_batch
from transactional.topology.topology import Query, Topology


@dataclass(frozen=True, slots=True)
class Answer(Sequence[Mapping[str, Any]]):
    """The tuples of a query's stream, as dicts, as of the committed transaction `txid`; 0 if none is committed."""

    txid: TxId
    table: pa.Table

    def __getitem__(self, place: Any) -> Any:
        return self.table.to_pylist()[place]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Answer(txid={self.txid}, {self.table.to_pylist()})"

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return notebook_view({f"as of transaction {self.txid}": self.table})


class QueryClient:
    """Executes the queries of a topology, whether or not it runs, in this process or another.

    `store` is the coordinator's store, or its URL; a topology of queries alone, which never runs, has none. An answer
    is computed here, without Spark; nothing is written, and no transaction waits. All states are read as of one
    committed transaction. Several threads may use it: their questions are answered side by side, each with tables of
    its own, so the functions of a query may run in several threads at a time.
    """

    @brief_errors()
    def __init__(self, topology: Topology, store: str | StoreReader | None = None) -> None:
        check_topology("what QueryClient is given", topology)
        self._owns_store = isinstance(store, str) and not topology.has_queries_alone
        self._store = _open_store(topology, store)
        self._queries = topology.queries
        self._numbers, self._running = count(1), dict[TransactionAttempt, _Run]()
        self._lock, self._is_closed = threading.Lock(), False
        reads = dict.fromkeys(committer for query in topology.queries.values() for committer in query.reads)
        self._open_tables = partial(Tables.open, topology, self._store, reads)
        self._free_tables: list[Tables] = []
        """Opened tables that no question is using."""
        try:
            self._free_tables.append(self._open_tables())
            self._runs = {
                query.name: LocalExecutor(query.topology, record=partial(self._record, query))
                for query in topology.queries.values()
            }
        except BaseException:
            self._close_store()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queries(self) -> Mapping[str, Query]:
        """The queries of the topology, by name."""
        return self._queries

    @brief_errors()
    def execute(self, name: str, *values: Any) -> Answer:
        """Answer one question: a value for each field that the query declares.

        Raises `ConfigError` for a query or values that do not exist or fit, `QueryFailed` if a step fails on it, and
        what reading the store and the states raises: `StoreUnavailable`, `OperatingError`.
        """
        return self.execute_many(name, [values])

    @brief_errors()
    def execute_many(
        self, name: str, questions: Sequence[Sequence[Any]], *, is_given_up: Callable[[], bool] | None = None
    ) -> Answer:
        """Answer several questions as of one transaction, in their order. Aggregates and joins see the tuples of one
        question at a time.

        `is_given_up` is called at each look-up and for each batch that a step emits: once it returns True, the
        questions end with `QueryFailed`. A function of the query that takes long is not interrupted.
        """
        query = self._queries.get(name)
        if query is None:
            names = ", ".join(self._queries) or "(none)"
            raise ConfigError(f"there is no query {name!r}; there are: {names}{did_you_mean(name, self._queries)}")
        with naive_times_in(query.topology.naive_times):
            batch = _to_record_batch(query, questions)
        parts = [batch] if query.is_by_tuple else [batch.slice(row, 1) for row in range(batch.num_rows)]
        with self._lend_tables() as tables:
            run = _Run(tables, tables.pin(query.reads), is_given_up or (lambda: False))
            versions = {static.table: static.newest() for static in query.static_tables}
            for part in parts:
                self._answer(query, _make_batch(part, versions), run)
        return Answer(run.txid, pa.Table.from_batches(run.emitted, arrow_schema(query.returns)))

    def _answer(self, query: Query, batch: BatchMetadata, run: _Run) -> None:
        attempt = TransactionAttempt(TxId(max(run.txid, 1)), AttemptId(next(self._numbers)))
        lookups = {committer: partial(run.look_up, committer) for committer in query.reads}
        self._running[attempt] = run
        try:
            self._runs[query.name].run_with(attempt, batch, lookups)
        except AttemptLost as error:
            raise QueryFailed(f"query {query.name!r} was given up before it was answered") from error
        except (BoltFailed, FailedException, NaiveTime, SchemaMismatch) as error:
            raise QueryFailed(f"query {query.name!r}: {error}") from error
        finally:
            del self._running[attempt]

    @contextmanager
    def _lend_tables(self) -> Iterator[Tables]:
        """Lend tables that only this question uses until it ends."""
        with self._lock:
            tables = self._free_tables.pop() if self._free_tables else None
        tables = tables or self._open_tables()
        try:
            yield tables
        finally:
            tables.release()
            with self._lock:
                if not self._is_closed:
                    self._free_tables.append(tables)
            if self._is_closed:
                tables.close()

    def _record(
        self, query: Query, attempt: TransactionAttempt, component: str, stream: str, batch: pa.RecordBatch
    ) -> None:
        run = self._running[attempt]
        run.check_given_up()
        if (component, stream) == query.answers:
            run.emitted.append(batch.replace_schema_metadata())

    def close(self) -> None:
        """Close the tables, those in use once their questions are answered, and the store if it was opened here."""
        with self._lock:
            self._is_closed = True
            free_tables, self._free_tables = self._free_tables, []
        for tables in free_tables:
            tables.close()
        self._close_store()

    def _close_store(self) -> None:
        if self._owns_store and self._store is not None:
            self._store.close()


@dataclass(slots=True)
class _Run:
    """Questions that are being answered: their tables, pinned as of `txid`, and the batches emitted so far."""

    tables: Tables
    txid: TxId
    is_given_up: Callable[[], bool]
    emitted: list[pa.RecordBatch] = field(default_factory=list)

    def look_up(self, committer: str, keys: pa.Table) -> pa.Table:
        """Read the rows with these keys. Raises `AttemptLost` if nobody waits for the answer any more."""
        self.check_given_up()
        return self.tables.lookup(committer, self.txid, keys)

    def check_given_up(self) -> None:
        """Raise `AttemptLost` if nobody waits for the answer any more."""
        if self.is_given_up():
            raise AttemptLost("nobody waits for the answer any more")


def _open_store(topology: Topology, store: str | StoreReader | None) -> StoreReader | None:
    if topology.has_queries_alone:
        return None
    if store is None:
        raise ConfigError(f"topology {topology.id!r} keeps states: QueryClient takes the store of its coordinator, too")
    return open_for_reading(store) if isinstance(store, str) else store


def _make_batch(questions: pa.RecordBatch, versions: Mapping[str, StaticVersion]) -> BatchMetadata:
    """Return the batch of some questions, whose steps all read the static tables in the same versions."""
    batch = make_batch(questions)
    return replace(batch, facts=BatchFacts(SystemClock().wall_ms()), static_versions=versions) if versions else batch


def _to_record_batch(query: Query, questions: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    for values in questions:
        if isinstance(values, str | bytes) or len(values) != len(query.fields):
            raise ConfigError(
                f"query {query.name!r} takes {len(query.fields)} values, '{query.fields}'; got {repr(values)[:200]}"
            )
    try:
        return batch_from_rows(
            [tuple(values) for values in questions], arrow_schema(query.fields), component="question"
        )
    except NaiveTime as error:
        raise ConfigError(f"query {query.name!r}: {error}") from None
    except SchemaMismatch as error:
        raise ConfigError(
            f"query {query.name!r} takes '{query.fields}', and the values given do not fit: {error}"
        ) from None
