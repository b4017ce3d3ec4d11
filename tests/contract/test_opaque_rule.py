"""Every form of the opaque rule, held against its one table: Python values, Arrow, and the SQL of three engines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake

import state.delta.merged
import state.delta.small
from state.delta.sql import SPARK_SQL, visible_rows
from state.delta.state import DeltaMapState
from state.memory import MemoryMapState
from state.sql.state import SqlMapState
from state.values import OpaqueValue, combined
from tests.contract.opaque_rule import ABSENT as NOTHING
from tests.contract.opaque_rule import DOES, RULE, TXID, There
from tests.contract.states import OWNER
from transactional.absent import ABSENT
from transactional.arrow import arrow_schema
from transactional.attempt import AttemptId, TransactionAttempt, TxId
from transactional.ports import Partials
from transactional.schema import Schema
from transactional.spark_session import spark_session

Rows = dict[str, There]
BEFORE: Rows = {key: row for key, (row, _, _) in RULE.items() if row is not None}
SEEN = {key: seen for key, (_, seen, _) in RULE.items() if seen is not NOTHING}
COLUMNS = ("value", "prev_value", "txid", "prev_txid")
ATTEMPT = TransactionAttempt(TxId(TXID), AttemptId(9))
WHICH = {AttemptId(8): TxId(TXID), AttemptId(9): TxId(TXID)}
"""Attempt 8 is the dead one."""


def after(number: int) -> Rows:
    """What there has to be after a transaction that does one of DOES to every key."""
    return {key: row for key, (_, _, rows) in RULE.items() if (row := rows[number]) is not None}


def partials(number: int) -> Partials:
    """One of DOES, done to every key."""
    how, value = DOES[number] or ("sum", None)
    keys = list(RULE) if DOES[number] is not None else []
    schema = arrow_schema(Schema.parse("key string, value long"))
    return Partials({"value": how}, pa.table([keys, [value] * len(keys)], schema=schema))


def by_values(_: Path, number: int) -> tuple[Rows, Any]:
    stored = {key: value_of(row) for key, row in BEFORE.items()}
    seen = {key: before for key, each in stored.items() if (before := each.before(TxId(TXID))) is not ABSENT}
    left = {key: applied(stored.get(key), number) for key in RULE}
    return {k: (v.value, v.prev_value, v.txid, v.prev_txid) for k, v in left.items() if v is not None}, seen


def value_of(row: There) -> OpaqueValue:
    value, previous, txid, before = row
    return OpaqueValue(value, previous, TxId(txid), None if before is None else TxId(before))


def applied(stored: OpaqueValue | None, number: int) -> OpaqueValue | None:
    txid, does = TxId(TXID), DOES[number]
    if does is None:
        return stored and stored.roll_back(txid)
    how, partial = does
    if stored is None:
        return OpaqueValue.first(txid, combined(how, ABSENT, partial))
    return stored.apply(txid, lambda before: combined(how, before, partial))


def in_memory(_: Path, number: int) -> tuple[Rows, Any]:
    words = MemoryMapState("key string", "value long")
    words.open(OWNER, WHICH.__getitem__)
    words.stored.rows = {
        (key,): OpaqueValue((value,), (previous,), TxId(txid), None if before is None else TxId(before))
        for key, (value, previous, txid, before) in BEFORE.items()
    }
    words.stored.version = AttemptId(8)
    seen = {key[0]: values[0] for key, values in words.get(ATTEMPT, [(key,) for key in RULE]).items()}
    words.merge(ATTEMPT, partials(number))
    return {
        key: (row.value[0], None if row.prev_value is None else row.prev_value[0], row.txid, row.prev_txid)
        for (key,), row in words.stored.rows.items()
    }, seen


def in_sqlite(folder: Path, number: int) -> tuple[Rows, Any]:
    words = SqlMapState(f"sqlite:///{folder / 'states.db'}", "words", "key string", "value long")
    words.open(OWNER, WHICH.__getitem__)
    with sqlite3.connect(folder / "states.db") as rows:
        rows.execute("UPDATE transactional_states SET attempt_id = 8")
        names = ", ".join(("key", *COLUMNS))
        rows.executemany(f"INSERT INTO words ({names}) VALUES (?, ?, ?, ?, ?)", [(k, *r) for k, r in BEFORE.items()])
    seen = {key[0]: values[0] for key, values in words.get(ATTEMPT, [(key,) for key in RULE]).items()}
    words.merge(ATTEMPT, partials(number))
    words.close()
    with sqlite3.connect(folder / "states.db") as rows:
        return {key: tuple(row) for key, *row in rows.execute(f"SELECT {names} FROM words")}, seen


def in_delta(folder: Path, number: int, engine: str = "delta-rs") -> tuple[Rows, Any]:
    words = DeltaMapState(folder / "t", "key string", "value long", engine=engine)
    words.open(OWNER, WHICH.__getitem__)
    table = DeltaTable(words.location.uri)
    columns = [list(BEFORE), *zip(*BEFORE.values(), strict=True)]
    names, types = ("key", *COLUMNS), [pa.string(), *[pa.int64()] * 4]
    arrays = {name: pa.array(list(each), type_) for name, each, type_ in zip(names, columns, types, strict=True)}
    rows = pa.table(arrays).select(pa.schema(table.schema()).names)
    write_deltalake(
        table,
        rows,
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction(OWNER, 8)]),
    )
    seen = {key[0]: values[0] for key, values in words.get(ATTEMPT, [(key,) for key in RULE]).items()}
    words.merge(ATTEMPT, partials(number))
    selected = f"SELECT key, {', '.join(COLUMNS)} FROM t"
    found = pa.table(QueryBuilder().register("t", DeltaTable(words.location.uri)).execute(selected).read_all())
    return {row.pop("key"): tuple(row.values()) for row in found.to_pylist()}, seen


FORMS: dict[str, Callable[[Path, int], tuple[Rows, Any]]] = {
    "Python values": by_values,
    "a state in memory": in_memory,
    "SQLite": in_sqlite,
    "Arrow, two files": in_delta,
    "Arrow, an overwrite": in_delta,
    "delta-rs' MERGE": in_delta,
}


@pytest.mark.parametrize("number", range(len(DOES)), ids=[str(does) for does in DOES])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_rule(form: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form == "Arrow, an overwrite":
        monkeypatch.setattr(state.delta.merged, "replaceable_files", lambda _: None)
    if form == "delta-rs' MERGE":
        monkeypatch.setattr(state.delta.small, "REWRITTEN_ROWS_MAX", -1)
    rows, seen = FORMS[form](tmp_path, number)
    assert _plain(rows) == _plain(after(number))
    assert seen == SEEN


@pytest.mark.spark
@pytest.mark.parametrize("number", range(len(DOES)), ids=[str(does) for does in DOES])
def test_the_rule_as_spark_writes_and_reads_it(number: int, tmp_path: Path) -> None:
    session = spark_session(master="local[2]")
    rows, seen = in_delta(tmp_path, number, "spark")
    assert _plain(rows) == _plain(after(number))
    assert seen == SEEN
    columns = DeltaMapState("t", "key string", "value long").columns
    read = session.sql(visible_rows(columns, TxId(TXID), SPARK_SQL, f"delta.`{tmp_path / 't'}`")).toArrow().to_pylist()
    assert DOES[number] is None or {row["key"]: row["value"] for row in read} == SEEN


def _plain(rows: Rows) -> Rows:
    """Without the previous value of a row that was not there before, which means nothing."""
    return {key: (row[0], None if row[3] is None else row[1], row[2], row[3]) for key, row in rows.items()}
