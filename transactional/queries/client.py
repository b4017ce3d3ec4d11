"""`QueryClient`: queries a topology from outside, in any process; each answer is as of one committed transaction."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from transactional.arrow import arrow_schema, batch_from_rows
from transactional.arrow.zones import naive_times_in
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.batch import BatchMetadata
from transactional.engine.clock import SystemClock
from transactional.errors import BoltFailed, ConfigError, FailedException, NaiveTime, QueryFailed, SchemaMismatch
from transactional.facts import BatchFacts
from transactional.loading import open_for_reading
from transactional.phases.local_executor import LocalExecutor
from transactional.queries.pinning import Tables
from transactional.queries.showing import view_of
from transactional.schema import did_you_mean
from transactional.store import StoreReader
from transactional.topology.topology import Query, Topology
from transactional.trident.questions import batch_of


@dataclass(frozen=True, slots=True)
class Answer(Sequence[Mapping[str, Any]]):
    """The tuples of a query's stream, as dicts. `txid` is the committed transaction that they are as of; 0 if there is
    none."""

    txid: TxId
    table: pa.Table

    def __getitem__(self, place: Any) -> Any:
        return self.table.to_pylist()[place]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Answer(txid={self.txid}, {self.table.to_pylist()})"

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return view_of({f"as of transaction {self.txid}": self.table})


class QueryClient:
    """Executes the queries of a topology, whether or not it runs, in this process or another.

    `store` is the coordinator's store, or its URL; a topology of queries alone, which never runs, has none. An answer
    is computed here, without Spark; nothing is written, and no transaction waits. All states are read as of one
    committed transaction. Several threads may use it; they are answered one after the other.
    """

    def __init__(self, topology: Topology, store: str | StoreReader | None = None) -> None:
        self._owns_store = isinstance(store, str) and not topology.has_queries_alone
        self._store = _store_of(topology, store)
        self._queries = topology.queries
        self._lock, self._numbers = threading.Lock(), count(1)
        self._emitted: list[pa.RecordBatch] = []
        try:
            reads = dict.fromkeys(each for query in topology.queries.values() for each in query.reads)
            self._tables = Tables.of(topology, self._store, reads)
            self._runs = {
                query.name: LocalExecutor(query.topology, record=partial(self._record, query))
                for query in topology.queries.values()
            }
        except BaseException:
            self._close_store()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def queries(self) -> Mapping[str, Query]:
        """The queries, by name."""
        return self._queries

    def execute(self, name: str, *values: Any) -> Answer:
        """Answer one question: a value for each field that the query declares.

        Raises `ConfigError` for a query or values that do not exist or fit, `QueryFailed` if a step fails on it, and
        what reading the store and the states raises: `StoreUnavailable`, `OperatingError`.
        """
        return self.execute_many(name, [values])

    def execute_many(self, name: str, questions: Sequence[Sequence[Any]]) -> Answer:
        """Answer several questions at once: the query's stream has a tuple for each of them."""
        query = self._queries.get(name)
        if query is None:
            known = ", ".join(self._queries) or "(none)"
            raise ConfigError(f"there is no query {name!r}; there are: {known}{did_you_mean(name, self._queries)}")
        with naive_times_in(query.topology.naive_times):
            batch = _as_batch(query, questions)
        with self._lock, self._pinned(query) as txid:
            self._emitted = []
            lookups = {each: partial(self._tables.lookup, each, txid) for each in query.reads}
            attempt = TransactionAttempt(TxId(max(txid, 1)), AttemptId(next(self._numbers)))
            try:
                self._runs[name].run_with(attempt, self._planned(query, batch), lookups)
            except (BoltFailed, FailedException, NaiveTime, SchemaMismatch) as error:
                raise QueryFailed(f"query {name!r}: {error}") from error
            return Answer(txid, pa.Table.from_batches(self._emitted, arrow_schema(query.returns)))

    def _planned(self, query: Query, questions: pa.RecordBatch) -> BatchMetadata:
        """Tables of others are looked up in one version by all steps of an answer."""
        batch = batch_of(questions)
        if not query.static_tables:
            return batch
        versions = {each.table: each.newest() for each in query.static_tables}
        return replace(batch, facts=BatchFacts(SystemClock().wall_ms()), static_versions=versions)

    @contextmanager
    def _pinned(self, query: Query) -> Iterator[TxId]:
        try:
            yield self._tables.pin(query.reads)
        finally:
            self._tables.release()

    def _record(self, query: Query, _: TransactionAttempt, component: str, stream: str, batch: pa.RecordBatch) -> None:
        if (component, stream) == query.result:
            self._emitted.append(batch.replace_schema_metadata())

    def close(self) -> None:
        """Close what was opened; not a store that was given."""
        self._tables.close()
        self._close_store()

    def _close_store(self) -> None:
        if self._owns_store and self._store is not None:
            self._store.close()


def _store_of(topology: Topology, given: str | StoreReader | None) -> StoreReader | None:
    if topology.has_queries_alone:
        return None
    if given is None:
        raise ConfigError(f"topology {topology.id!r} keeps states: QueryClient takes the store of its coordinator, too")
    return open_for_reading(given) if isinstance(given, str) else given


def _as_batch(query: Query, questions: Sequence[Sequence[Any]]) -> pa.RecordBatch:
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
            f"query {query.name!r} takes '{query.fields}', and the values given do not fit: {error.__cause__}"
        ) from None
