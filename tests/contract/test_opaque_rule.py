"""Every form of the opaque rule, held against its one table: Python values, Arrow, the SQL of three engines, Redis."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from pyspark.sql import SparkSession

import state.delta.write.loaded_table
from state.delta.state import DeltaMapState
from state.delta.tables.sql import SPARK_SQL, select_visible_rows
from state.memory import MemoryMapState
from state.redis.registration import keys_of
from state.redis.state import RedisMapState
from state.redis.values import RowCodec
from state.rows.columns import StateColumns
from state.rows.opaque_rule import OpaqueRule
from state.rows.stored_value import StoredValue
from state.rows.sums import SumCheck
from state.sql.state import SqlMapState
from tests.contract import places
from tests.contract.states import OWNER, write_by_files
from transactional.core.ports import Partials, State
from transactional.model.absent import ABSENT
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.testing.states.opaque_rule import ABSENT as NOTHING
from transactional.testing.states.opaque_rule import DOES, DOES_OR_DELETES, RULE, RULE_WITH_DELETES, TXID

Rows = dict[str, tuple[Any, ...]]
COLUMNS = ("value", "prev_value", "txid", "prev_txid")
ATTEMPT = TransactionAttempt(TxId(TXID), AttemptId(9))
WHICH = {AttemptId(8): TxId(TXID), AttemptId(9): TxId(TXID)}
"""Attempt 8 is the dead one."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a transaction does to every key, of a table whose keys may or may not be deleted."""

    does: tuple[str, int | None] | None
    deletes: bool

    def __str__(self) -> str:
        return f"{self.does}{' with deletes' if self.deletes else ''}"

    @property
    def rule(self) -> Mapping[str, Any]:
        return RULE_WITH_DELETES if self.deletes else RULE

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, "deleted") if self.deletes else COLUMNS

    @property
    def before(self) -> Rows:
        return {key: row for key, (row, _, _) in self.rule.items() if row is not None}

    @property
    def seen(self) -> dict[str, Any]:
        return {key: seen for key, (_, seen, _) in self.rule.items() if seen is not NOTHING}

    @property
    def after(self) -> Rows:
        number = (DOES_OR_DELETES if self.deletes else DOES).index(self.does)
        return {key: row for key, (_, _, rows) in self.rule.items() if (row := rows[number]) is not None}

    def do(self, words: State) -> dict[str, Any]:
        """Do it; what was seen before."""
        seen = {key[0]: values[0] for key, values in words.get(ATTEMPT, [(key,) for key in self.rule]).items()}
        assert seen == {key[0]: values[0] for key, values in words.items(ATTEMPT)}
        if self.does == ("delete", None):
            words.put(ATTEMPT, {(key,): ABSENT for key in self.rule})
        else:
            words.merge(ATTEMPT, self._partials())
        return seen

    def _partials(self) -> Partials:
        how, value = self.does or ("sum", None)
        keys = list(self.rule) if self.does is not None else []
        schema = arrow_schema(Schema.parse("key string, value long"))
        return Partials({"value": how}, pa.table([keys, [value] * len(keys)], schema=schema))


CASES = [*(Case(does, deletes=False) for does in DOES), *(Case(does, deletes=True) for does in DOES_OR_DELETES)]


def by_values(_: Path, case: Case) -> tuple[Rows, Any]:
    stored = {(key,): value_of(row) for key, row in case.before.items()}
    seen = {
        key: before[0] for (key,), each in stored.items() if (before := each.value_before(TxId(TXID))) is not ABSENT
    }
    how, partial = case.does or ("sum", None)
    columns = StateColumns(Schema.parse("key string"), Schema.parse("value long"), deletes=case.deletes)
    rule = OpaqueRule(columns, TxId(TXID), SumCheck("words", columns.values, [how]))
    coming = {(key,): ABSENT if how == "delete" else (partial,) for key in case.rule if case.does}
    return {key: row_of(row, case) for (key,), row in rule.apply(stored, coming).items() if row}, seen


def value_of(row: tuple[Any, ...]) -> StoredValue:
    value, previous, txid, before, *is_deleted = row
    return StoredValue(ABSENT if any(is_deleted) else (value,), (previous,), txid, before)


def row_of(row: StoredValue, case: Case) -> tuple[Any, ...]:
    """A row as the table has it."""
    is_deleted = row.value is ABSENT
    mark = (is_deleted,) if case.deletes else ()
    return (None if is_deleted else row.value[0], row.prev_value and row.prev_value[0], row.txid, row.prev_txid, *mark)


def in_memory(_: Path, case: Case) -> tuple[Rows, Any]:
    words = MemoryMapState("key string", "value long", deletes=case.deletes)
    words.open(OWNER, WHICH.__getitem__)
    words.stored.rows = {(key,): value_of(row) for key, row in case.before.items()}
    words.stored.version = AttemptId(8)
    seen = case.do(words)
    return {key: row_of(row, case) for (key,), row in words.stored.rows.items()}, seen


def in_sqlite(folder: Path, case: Case) -> tuple[Rows, Any]:
    words = SqlMapState(f"sqlite:///{folder / 'states.db'}", "words", "key string", "value long", deletes=case.deletes)
    words.open(OWNER, WHICH.__getitem__)
    with sqlite3.connect(folder / "states.db") as rows:
        rows.execute("UPDATE transactional_states SET attempt_id = 8")
        names = ", ".join(("key", *case.columns))
        marks = ", ".join("?" * (1 + len(case.columns)))
        rows.executemany(f"INSERT INTO words ({names}) VALUES ({marks})", [(k, *r) for k, r in case.before.items()])
    seen = case.do(words)
    words.close()
    with sqlite3.connect(folder / "states.db") as rows:
        return {key: tuple(row) for key, *row in rows.execute(f"SELECT {names} FROM words")}, seen


def in_redis(url: str, case: Case) -> tuple[Rows, Any]:
    name = places.in_redis(url).table
    words = RedisMapState(url, name, "key string", "value long", deletes=case.deletes)
    words.open(OWNER, WHICH.__getitem__)
    codec = RowCodec(words.key, words.values, name)
    meta, rows, changed, _ = keys_of(name)
    client = words._server.client
    client.hset(meta, "attempt", 8)
    for key, row in case.before.items():
        stored: Any = value_of(row)
        client.hset(rows, codec.key_bytes((key,)), codec.row_bytes(stored))
        if stored.txid == TXID or stored.value is ABSENT:
            client.sadd(changed, codec.key_bytes((key,)))
    seen = case.do(words)
    left = {codec.key_of(key)[0]: row_of(codec.row_of(row), case) for key, row in client.hgetall(rows).items()}
    words.close()
    return left, seen


def in_delta(folder: Path, case: Case) -> tuple[Rows, Any]:
    words = DeltaMapState(folder / "t", "key string", "value long", deletes=case.deletes)
    words.open(OWNER, WHICH.__getitem__)
    table, names = DeltaTable(words.location.uri), ("key", *case.columns)
    columns = [list(case.before), *zip(*case.before.values(), strict=True)]
    types = [pa.string(), *[pa.int64()] * 4, pa.bool_()]
    given = zip(names, columns, types, strict=False)
    rows = pa.table({name: pa.array(list(each), type_) for name, each, type_ in given})
    write_deltalake(
        table,
        rows.select(pa.schema(table.schema()).names),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(OWNER, 8)]),
    )
    seen = case.do(words)
    selected = f"SELECT {', '.join(names)} FROM t"
    found = pa.table(QueryBuilder().register("t", DeltaTable(words.location.uri)).execute(selected).read_all())
    return {row.pop("key"): tuple(row.values()) for row in found.to_pylist()}, seen


FORMS: dict[str, Callable[[Path, Case], tuple[Rows, Any]]] = {
    "Python values": by_values,
    "a state in memory": in_memory,
    "SQLite": in_sqlite,
    "Arrow, two files": in_delta,
    "Arrow, an overwrite": in_delta,
    "file by file": in_delta,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_rule(form: str, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "Arrow, an overwrite":
        monkeypatch.setattr(state.delta.write.loaded_table, "list_replaceable_files", lambda _: None)
    if form == "file by file":
        write_by_files(monkeypatch)
    rows, seen = FORMS[form](tmp_path, case)
    assert _plain(rows) == _plain(case.after)
    assert seen == case.seen


@pytest.mark.spark
@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_as_spark_reads_it(case: Case, tmp_path: Path, spark: SparkSession) -> None:
    in_delta(tmp_path, case)
    columns = DeltaMapState("t", "key string", "value long", deletes=case.deletes).declared.columns
    read = (
        spark.sql(select_visible_rows(columns, TxId(TXID), SPARK_SQL, f"delta.`{tmp_path / 't'}`"))
        .toArrow()
        .to_pylist()
    )
    assert case.does is None or {row["key"]: row["value"] for row in read} == case.seen


@pytest.mark.redis
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_rule_in_redis(case: Case, redis_url: str) -> None:
    rows, seen = in_redis(redis_url, case)
    assert _plain(rows) == _plain(case.after)
    assert seen == case.seen


def _plain(rows: Rows) -> Rows:
    """Without the previous value of a row that was not there before, which means nothing; NULL is no tombstone."""
    return {k: (row[0], None if row[3] is None else row[1], *row[2:4], *map(bool, row[4:])) for k, row in rows.items()}
