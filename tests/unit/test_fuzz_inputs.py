"""Whatever comes from outside is read cleanly or refused with an error of ours: never another one, never a hang.

Outside are configuration files, variables and texts, rows of a store, recorded batches, journals, dead letters, the
logs of Delta tables, and the records of a topic.
"""

from __future__ import annotations

import gc
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spouts.decoding.json_records import JsonTranslator
from spouts.kafka.records import FIELD_TYPES, record_schema
from tests.examples import examples
from transactional.core.machine.protocol import (
    AttemptFailed,
    BatchPlanned,
    ProcessingSucceeded,
    RecordAttempt,
    RecordFailure,
    Tick,
)
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.core.store import AttemptRecord
from transactional.core.store.progress import Phase, Progress
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import TransactionalError
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.batch import BatchLimit, BatchMetadata, Offset, OffsetRange, PartitionId
from transactional.model.config import OPTIONS, TopologyConfig
from transactional.model.config_sources import load_config
from transactional.model.letters import Exclusion, Letter
from transactional.model.schema import Schema
from transactional.runtime.engine.history.journal import RunStarted, encode, read_journal
from transactional.runtime.engine.history.replay import replay
from verifier.evidence.delta_log import LogBroken, read_log
from verifier.evidence.storage import FolderStorage

T = TypeVar("T")

# One folder serves all examples of a test: each writes its files anew.
SHARED_FOLDER = [HealthCheck.function_scoped_fixture]

DEEP = "[" * 9_000
"""More than Python's reader can take. Hypothesis shows examples, so it is not longer than it has to be."""
LONG_NUMBER = "9" * 5_000
LONELY = "\ud800"


@pytest.fixture(scope="module", autouse=True)
def no_garbage_is_collected_in_the_depth() -> Iterator[None]:
    """A finalizer that gets no frame any more fails, and the test with it that happens to be so deep."""
    gc.disable()
    yield
    gc.enable()


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([2**63, -1, 1e999]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
# The checker shares no errors with the framework.
REFUSALS = (TransactionalError, LogBroken)


def cleanly(call: Callable[[], T]) -> T | None:
    """What the call returns, None when it is refused. Every other exception comes through and fails the test."""
    try:
        return call()
    except REFUSALS:
        return None


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a JSON document."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(document: Any, path: tuple[Any, ...], new: Any, *, remove: bool) -> Any:
    """A copy of the document in which one value is another one, or not there."""
    if not path:
        return new
    copy: Any = dict(document) if isinstance(document, dict) else list(document)
    if remove and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(document[path[0]], path[1:], new, remove=remove)
    return copy


@st.composite
def mutated(draw: st.DrawFn, *documents: Any) -> Any:
    """One of the documents with some of its values exchanged or taken out: nearly right, so that it is read far."""
    document = draw(st.sampled_from(documents))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(document))))
        document = changed(document, path, draw(JSON_VALUES), remove=draw(st.booleans()))
    return document


# --- configuration --------------------------------------------------------------------------------------------------

OPTION_TEXTS = st.text(max_size=12) | st.sampled_from(
    ["1", "-1", "0", "none", "true", "1e3", "1" * 400 + "s", "²", "٣", "1_0", LONG_NUMBER, "nan", "inf s", "10 h"]
)


@given(st.sampled_from(OPTIONS), OPTION_TEXTS)
@example("lease_ms", LONG_NUMBER)
@example("lease_ms", "1" * 400 + "s")
@example("attempt_timeout_ms", "9" * 400)
def test_an_option_as_text(name: str, text: str) -> None:
    cleanly(lambda: load_config(environment={f"TRANSACTIONAL_{name.upper()}": text}))
    found = cleanly(lambda: load_config(environment={}, assignments=[f"{name}={text}"]))
    if found is not None and not isinstance(value := getattr(found.config, name), bool | str | None):
        assert value * 86_400_000 < 2**63 or name.endswith("_ms"), "a number of days has to fit a database's column"
        assert value / 1000 < threading.TIMEOUT_MAX


@given(st.sampled_from(OPTIONS) | st.text(max_size=8), JSON_VALUES)
def test_an_option_of_any_type(name: str, value: Any) -> None:
    cleanly(lambda: load_config({name: value}, environment={}))


@settings(suppress_health_check=SHARED_FOLDER)
@given(
    st.binary(max_size=40)
    | st.sampled_from(
        [b"[topology]\nlease_ms = " + end for end in (b"[" * 9_000, LONG_NUMBER.encode(), b"nan", b"1979-05-27")]
    )
)
@example(b"a = " + DEEP.encode())
@example(b"[topology]\nlease_ms = " + LONG_NUMBER.encode())
@example(b"a = " + b"{b = " * 3_000)
def test_a_configuration_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "transactional.toml"
    path.write_bytes(content)
    cleanly(lambda: load_config(file=path, environment={}))


@given(st.text(max_size=30) | st.text("arystmpdecil<>(),:` 0²", max_size=40))
@example("a decimal(²,1)")
@example("a " + "array<" * 1_500 + "int" + ">" * 1_500)
def test_a_schema(text: str) -> None:
    schema = cleanly(lambda: Schema.parse(text))
    assert schema is None or len(arrow_schema(schema)) == len(schema)


# --- recorded batches, rows of a store, journals --------------------------------------------------------------------

WORDS_0 = PartitionId("words", 0)
ATTEMPT = TransactionAttempt(TxId(1), AttemptId(2))
BATCH = BatchMetadata(
    {WORDS_0: OffsetRange(Offset(0), Offset(3)), PartitionId("words", 1): OffsetRange(Offset(2), Offset(2))},
    metadata={WORDS_0: {"page": 1}},
    split_records=2,
    excluded=(Exclusion("bolt", "f00", "ValueError"),),
    letters=(Letter(1, 0, "bolt", "spout", "default", "{}", "ValueError"),),
)


@given(mutated(json.loads(BATCH.to_json())))
def test_a_recorded_batch_that_is_nearly_right(document: Any) -> None:
    batch = cleanly(lambda: BatchMetadata.from_json(json.dumps(document)))
    if batch is not None:
        assert BatchMetadata.from_json(batch.to_json()) == batch


@given(st.text(max_size=30) | st.sampled_from([DEEP, LONG_NUMBER, '{"version": 4, "partitions": ' + DEEP]))
def test_a_recorded_batch_of_any_text(text: str) -> None:
    cleanly(lambda: BatchMetadata.from_json(text))


COLUMNS = {
    "topologies": (
        *("epoch", "owner", "leased_until_ms", "attempt_id", "committed_txid", "committed_attempt_id"),
        *("fingerprint", "name", "desired", "stop_at_ms"),
    ),
    "attempts": ("txid", "phase", "batch", "rows", "issued_at_ms", "planned_at_ms", "error", "committed_at_ms"),
    "transactions": ("txid",),
    "fences": ("attempt_id", "txid"),
    "schema": ("version",),
}
CELLS = st.sampled_from([(table, column) for table, columns in COLUMNS.items() for column in columns])
SQL_VALUES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=9) | st.text(max_size=9)
) | st.sampled_from([DEEP, "[]", "{}", '{"committers": 1}', '{"version": 4, "partitions": [["a", 0, 3, 1]]}', "killed"])


def written_store(path: Path) -> str:
    url = f"sqlite:///{path}"
    store = SqlCoordinatorStore(url)
    lease = store.acquire("counts", {"spout": "words"}, owner="first", lease_ms=1_000)
    store.record_fence(lease, "total", TxId(0))
    for txid in (1, 2):
        attempt = TransactionAttempt(TxId(txid), AttemptId(txid + 1))
        store.record_attempt(
            lease, AttemptRecord(attempt, "processing", BATCH, None, 0, 0, None, None, None, None), forget_later=False
        )
        if txid == 1:
            store.record_commit(lease, attempt, BATCH, processed_at_ms=0, started_at_ms=0, at_ms=0)
    store.close()
    return url


@pytest.fixture(scope="module")
def right_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store in which there is nothing wrong."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    written_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes()


def tables_of(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of the store, in place of what has failed
@settings(max_examples=examples(40), suppress_health_check=SHARED_FOLDER)
@given(CELLS, SQL_VALUES)
@example(("topologies", "fingerprint"), "no JSON")
@example(("topologies", "fingerprint"), "[]")
@example(("topologies", "fingerprint"), '{"committers": 1}')
@example(("topologies", "fingerprint"), '{"committers": {"count": 1}}')
@example(("topologies", "desired"), "sideways")
@example(("topologies", "epoch"), 0)
@example(("topologies", "epoch"), 2**63 - 1)
@example(("topologies", "attempt_id"), 2**63 - 1)
@example(("topologies", "committed_txid"), "one")
@example(("topologies", "leased_until_ms"), "soon")
@example(("attempts", "batch"), 5)
@example(("attempts", "batch"), b"\xff")
@example(("attempts", "batch"), DEEP)
@example(("schema", "version"), "two")
@example(("schema", "version"), 0)
def test_a_row_of_the_store(tmp_path: Path, right_store: bytes, cell: tuple[str, str], value: Any) -> None:
    path = tmp_path / "store.db"
    for old in tmp_path.glob("store.db*"):
        old.unlink()
    path.write_bytes(right_store)
    url = f"sqlite:///{path}"
    with closing(sqlite3.connect(path)) as connection:
        [table] = [name for name in tables_of(connection) if name.endswith(cell[0])]
        with suppress(sqlite3.IntegrityError), connection:  # some are refused by the database already
            connection.execute(f"UPDATE {table} SET {cell[1]} = ?", [value])
    store = SqlCoordinatorStore(url)
    try:
        for read in (
            store.status,
            lambda: store.desired("counts"),
            lambda: store.attempts("counts", limit=9),
            lambda: store.txid_of("counts", "total", AttemptId(1)),
            lambda: store.acquire("counts", {"spout": "words"}, owner="first", lease_ms=1_000),
        ):
            cleanly(read)
    finally:
        store.close()


@settings(suppress_health_check=SHARED_FOLDER)
@given(st.binary(max_size=200))
def test_a_file_that_is_no_store(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "no store.db"
    path.write_bytes(b"SQLite format 3\0" + content)
    store = SqlCoordinatorStore(f"sqlite:///{path}")
    cleanly(store.status)
    store.close()


STARTED = RunStarted(
    Progress(TxId(0), BATCH, {TxId(1): BATCH}, AttemptId(1)), TopologyConfig(attempts_max=1), False, True
)
WORDS = [
    Tick(17),
    BatchPlanned(ATTEMPT, BATCH),
    BatchPlanned(ATTEMPT, BATCH, BatchLimit(1_000, 70, "why")),
    ProcessingSucceeded(ATTEMPT),
    AttemptFailed(ATTEMPT, "no", (Exclusion("bolt", "f00", "ValueError"),)),
]
ACTIONS = [encode(RecordAttempt(ATTEMPT, BATCH, forget_later=False))]
EVENTS = [{"at_ms": 1, "event": encode(word), "actions": ACTIONS} for word in WORDS]


@settings(suppress_health_check=SHARED_FOLDER)
@given(st.lists(mutated(*EVENTS, {"at_ms": 0, "run": STARTED.to_json()}) | st.sampled_from(EVENTS), max_size=4))
@example([{"at_ms": 1, "event": {"is": "Tick", "now_ms": "noon"}, "actions": []}])
@example(
    [
        {
            "at_ms": 1,
            "event": {"is": "AttemptFailed", "attempt": [1, 2], "reason": "", "at_fault": [["b"] * 3]},
            "actions": [],
        }
    ]
)
def test_a_journal_that_is_nearly_right(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "run.journal"
    first = {"at_ms": 0, "run": STARTED.to_json()}
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]))
    with suppress(AssertionError):  # what a journal is replayed for: its actions are others
        cleanly(lambda: replay(read_journal(path)))


@settings(suppress_health_check=SHARED_FOLDER)
@given(st.binary(max_size=60) | st.sampled_from([DEEP.encode(), LONG_NUMBER.encode(), b'{"run": ' + DEEP.encode()]))
def test_a_journal_of_any_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(content)
    cleanly(lambda: list(read_journal(path)))


def test_a_failure_of_any_text_is_stored(tmp_path: Path) -> None:
    """What a bolt raises may quote the bytes that it could not read."""
    store = SqlCoordinatorStore(written_store(tmp_path / "store.db"))
    lease = store.acquire("counts", {"spout": "words"}, owner="first", lease_ms=1_000)
    failure = RecordFailure(TransactionAttempt(TxId(2), AttemptId(3)), Phase.PROCESSING, f"\0{LONELY}", 1)
    store.record_failure(lease, failure.attempt, failure.phase, failure.reason, at_ms=1)
    [status] = store.status("counts")
    assert status.trouble is not None
    assert status.trouble.error.startswith("processing: ")
    store.close()


# --- dead letters ---------------------------------------------------------------------------------------------------

LETTER = {
    "word": "é",
    "at": {"$timestamp": "2020-01-01T00:00:00"},
    "bytes": {"$binary": "AA=="},
    "price": {"$decimal": "1"},
}


@given(mutated(LETTER).map(json.dumps) | st.text(max_size=20) | st.sampled_from([DEEP, LONG_NUMBER, "null", "[1]"]))
@example('{"a": {"$binary": 5}}')
@example('{"a": {"$decimal": "x"}}')
@example('{"a": {"$timestamp": "noon"}}')
@example('{"a": {"$date": null}}')
@example('{"a": {"$decimal": [1]}}')
def test_the_tuple_of_a_dead_letter(text: str) -> None:
    values = cleanly(lambda: values_from_json(text))
    assert values is None or isinstance(values, dict)


@given(
    st.dictionaries(
        st.sampled_from(["$binary", "$date", "$", "a"]), st.text(max_size=3) | st.binary(max_size=3), max_size=2
    )
)
def test_a_struct_that_looks_like_our_own_words(inner: dict[str, Any]) -> None:
    """A struct or map may have any names, also those that stand for what JSON has no word for."""
    assert values_from_json(values_to_json({"a": inner})) == {"a": inner}


# --- Delta logs ------------------------------------------------------------------------------------------------------

LOG = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {"metaData": {"schemaString": '{"fields": [{"name": "word"}]}', "configuration": {}, "partitionColumns": []}},
    {"txn": {"appId": "counts/total", "version": 2}},
    {"add": {"path": "a.parquet", "stats": None, "dataChange": True, "partitionValues": {}}},
    {"remove": {"path": "a.parquet", "dataChange": True}},
    {"commitInfo": {"operation": "MERGE"}},
]


@settings(suppress_health_check=SHARED_FOLDER)
@given(mutated(LOG) | JSON_VALUES, st.binary(max_size=10) | st.sampled_from([b"", DEEP.encode()]))
@example([[]], b"")
@example([{"metaData": {"schemaString": "[]"}}], b"")
@example([{"txn": {"appId": [], "version": 1}}], b"")
@example(LOG, DEEP.encode())
def test_the_log_of_a_delta_table(tmp_path: Path, document: Any, end: bytes) -> None:
    folder = tmp_path / "_delta_log"
    folder.mkdir(exist_ok=True)
    lines = document if isinstance(document, list) else [document]
    (folder / f"{0:020}.json").write_bytes(b"\n".join(json.dumps(line).encode() for line in lines) + b"\n" + end)
    cleanly(lambda: read_log(FolderStorage(str(tmp_path))))


@settings(max_examples=examples(30), suppress_health_check=SHARED_FOLDER)
@given(st.binary(max_size=60))
def test_the_checkpoint_of_a_delta_table(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "_delta_log"
    folder.mkdir(exist_ok=True)
    (folder / f"{3:020}.checkpoint.parquet").write_bytes(content)
    cleanly(lambda: read_log(FolderStorage(str(tmp_path))))


# --- records of a topic ----------------------------------------------------------------------------------------------

SCHEMAS = (
    "a long",
    "a string, b array<struct<x:double,y:date>>",
    "a decimal(5,2), b timestamp",
    "a binary, b boolean, c struct<d:struct<e:int>>",
)
VALUES = (
    st.none()
    | st.binary(max_size=30)
    | JSON_VALUES.map(lambda value: json.dumps({"a": value}).encode())
    | st.sampled_from([b"{" * 5_000 + b"}" * 5_000, b'{"a":' * 3_000 + b"1" + b"}" * 3_000, b'{"a":"\xff"}', b"{}\n{}"])
    | st.sampled_from(
        [b'{"a":' + LONG_NUMBER.encode() + b"}", b'{"a":1,"a":2}', b'{"a":"\\ud800"}', b'{"b":[{"x":[]}]}']
    )
)


def records_of(values: list[bytes | None]) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"topic": "t", "partition": 0, "offset": number, "key": value, "value": value, "timestamp": None, "headers": []}
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(record_schema(FIELD_TYPES)))


@settings(max_examples=examples(200))
@given(st.sampled_from(SCHEMAS), st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["fail", "null", "skip"]))
def test_the_records_of_a_topic(schema: str, values: list[bytes | None], on_error: Any) -> None:
    translator = JsonTranslator(schema, on_error=on_error)
    records = records_of(values).select(list(translator.fields))
    found = cleanly(lambda: translator.translate(records))
    assert found is not None or on_error == "fail"
    if found is not None:
        found.validate(full=True)
        assert found.num_rows == len(values) or on_error == "skip"
