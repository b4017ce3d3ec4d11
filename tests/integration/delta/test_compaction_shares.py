"""Compactions that several tasks write, each its share of the keys: together they say what one writer would have
written."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyarrow import parquet

from state.delta.segments import shares
from state.delta.segments.log_layout import LogLayout, full_compaction
from state.delta.segments.shares import SHARE_ROWS, is_in_share, shares_of
from state.delta.state import DeltaMapState
from state.delta.upkeep.background_compaction import (
    BackgroundCompaction,
    CompactionTask,
    WrittenCompaction,
    compaction_task,
)
from tests.contract.states import OWNER, Place
from tests.contract.test_horizons import History
from tests.integration.delta.test_staged import segments
from transactional.core.ports import Partials, StateKind
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.schema import Schema

pytestmark = pytest.mark.long("tests/integration/delta/test_background_compaction.py")

KEYS: dict[str, Callable[[Random], object]] = {
    "string": lambda random: "".join(random.choices("aä€😀 z0", k=random.randrange(6))),
    "long": lambda random: random.choice((-(2**63), 2**63 - 1, 0, 1000 * random.randrange(-9, 9))),
    "byte": lambda random: random.randrange(-128, 128),
    "boolean": lambda random: random.random() < 0.5,
    "date": lambda random: date(1970, 1, 1) + timedelta(days=random.randrange(-99, 99)),
    "timestamp": lambda random: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(minutes=random.randrange(-99, 99)),
    "decimal(38,0)": lambda random: Decimal(10**37 + random.randrange(9)),
    "binary": lambda random: random.randbytes(1),
}
COMBINE = {"count": "sum", "most": "max", "least": "min"}
VALUES = "count long, most int, least string"


def written(folder: Path, key: str, *, deletes: bool = False) -> CompactionTask:
    """A table of random rows in five transactions, the first two of them compacted; what a compaction of four has to
    write."""
    random, types = Random(f"{key}{deletes}"), Schema.parse(key)
    place = Place("delta-rs/log", folder)
    state = DeltaMapState(folder / "t", key, VALUES, layout=LogLayout(compact_after=None), deletes=deletes)
    state.open(OWNER, place.txids.__getitem__)
    schema = arrow_schema(Schema.parse(f"{key}, {VALUES}"))
    for txid in range(1, 6):
        attempt = place.attempt(txid, txid)
        keys = {tuple(None if random.random() < 0.1 else KEYS[each.type](random) for each in types) for _ in range(60)}
        rows = [(*each, random.randrange(9), random.choice((None, txid)), random.choice("xyz")) for each in keys]
        if deletes:
            state.put(attempt, {row[: len(types)]: row[len(types) :] for row in rows})
        else:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            state.merge(attempt, Partials(COMBINE, pa.Table.from_arrays(arrays, schema=schema)))
        if txid == 3:
            state.compact()
    stored = segments(state).compactor._stored
    compaction = full_compaction(stored.segments(), TxId(5))
    assert compaction is not None
    assert stored.base_txid() == 2
    return compaction_task(stored.loaded, stored.require_query().combine, compaction, stored.segments(), None)


def rows_of(task: CompactionTask, *parts: WrittenCompaction) -> Counter[str]:
    """What has been written."""
    files = [Path(task.location.uri, file.path) for part in parts for file in part.files]
    return Counter(str(tuple(row.values())) for file in files for row in parquet.read_table(file).to_pylist())


SHAREABLE = ["string", "long", "byte", "boolean", "date", "timestamp"]
COMPOSITE = ["a long, b long", "a string, b decimal(38,0), c timestamp", "`a-b` date, c binary"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [1, 2, 3, 8])
@pytest.mark.parametrize("key", [*(f"k {type_}" for type_ in SHAREABLE), *COMPOSITE])
def test_shares_together_are_what_one_writes(tmp_path: Path, key: str, number: int) -> None:
    task = written(tmp_path, key)
    whole = rows_of(task, task.write())
    parts = [task.write_share(share, number) for share in range(number)]
    assert rows_of(task, *parts) == whole
    assert {part.inputs for part in parts} == {task.write().inputs}
    assert len(whole) > 1
    assert all(count == 1 for count in whole.values())


def test_deleted_keys_are_in_no_share(tmp_path: Path) -> None:
    task = written(tmp_path, "k string, n long", deletes=True)
    assert rows_of(task, *(task.write_share(share, 3) for share in range(3))) == rows_of(task, task.write())


@pytest.mark.parametrize("key", ["k decimal(38,0)", "k binary", "a binary, b decimal(9,2)"])
def test_where_no_column_has_a_number_one_task_writes_all(key: str) -> None:
    assert shares_of(10**9, Schema.parse(key)) == 1
    assert shares_of(10**9, Schema.parse(f"{key}, c date")) > 60


def test_a_task_has_so_many_rows_at_most() -> None:
    key = Schema.parse("k string")
    assert [shares_of(rows, key) for rows in (0, 1, SHARE_ROWS, SHARE_ROWS + 1, 10 * SHARE_ROWS)] == [1, 1, 1, 2, 10]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", [2, 7, 8, 19])
@pytest.mark.parametrize(
    "key",
    [
        ("k long", lambda n: (n,)),
        ("k long", lambda n: (1000 * n,)),
        ("k timestamp", lambda n: (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n),)),
        ("k string", lambda n: (f"customer-{n:06}",)),
        ("k string", lambda n: (f"{n * 2654435761:x}",)),
        ("k string", lambda n: ((datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)).isoformat()[:19] + "Z",)),
        ("k string", lambda n: (base64.b64encode(sha256(b"%d" % n).digest()[:16]).decode(),)),
        ("k string", lambda n: (f"customer-{n:06}-EU",)),
        ("a long, b long", lambda n: (n, n)),
        ("a string, b timestamp", lambda n: (f"w{n % 97}", datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=n))),
    ],
)
def test_shares_are_of_about_one_size(
    tmp_path: Path, key: tuple[str, Callable[[int], tuple[object, ...]]], number: int
) -> None:
    ddl, key_of = key
    place, keys = Place("delta-rs/log", tmp_path), Schema.parse(ddl)
    state = DeltaMapState(tmp_path / "t", ddl, "n int", layout=LogLayout(compact_after=None))
    state.open(OWNER, place.txids.__getitem__)
    state.put(place.attempt(1, 1), {key_of(n): (n,) for n in range(20_000)})
    table = segments(state).compactor._stored.loaded
    sizes = [
        pa.table(table.query(f"SELECT count(*) AS n FROM t WHERE {is_in_share(keys, share, number)}"))["n"][0].as_py()
        for share in range(number)
    ]
    assert sum(sizes) == 20_000
    # Of keys that differ in one of the places that are looked at, some shares have none.
    assert max(sizes) < 2.1 * 20_000 / min(number, 10)


# --- wrong ways ---------------------------------------------------------------------------------------------------


def without_null(text: str) -> str:
    return re.sub(r"COALESCE\((.*?), 0\)", r"\1", text)


def without_sign(text: str) -> str:
    return text.replace("abs(", "(")


WRONG = {
    "rows without a key are in no share": (without_null, "k date"),
    "negative numbers are in no share": (without_sign, "k byte"),
    "all of it in each share": (lambda _: "true", "k string"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_to_share_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    change, key = WRONG[name]
    monkeypatch.setattr(
        "state.delta.upkeep.background_compaction.is_in_share", lambda *given: change(shares.is_in_share(*given))
    )
    with pytest.raises(AssertionError):
        test_shares_together_are_what_one_writes(tmp_path, key, 3)


# --- histories ----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_shares(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each compaction is a large one, and written in three shares before the next transaction; how many files each
    had."""
    found = list[int]()

    def write(task: CompactionTask) -> WrittenCompaction:
        parts = [task.write_share(share, 3) for share in range(3)]
        files = tuple(file for part in parts for file in part.files)
        found.append(len(files))
        return WrittenCompaction(task.compaction, parts[0].inputs, files)

    start = BackgroundCompaction.start

    def started(self: BackgroundCompaction, write: Callable[[], WrittenCompaction]) -> None:
        start(self, write)
        assert self._future is not None
        self._future.result(timeout=240)

    monkeypatch.setattr("state.delta.upkeep.background_compaction.BACKGROUND_ROWS", 0)
    monkeypatch.setattr(CompactionTask, "write", write)
    monkeypatch.setattr(BackgroundCompaction, "start", started)
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_histories_with_expiry_end_as_a_dict_does(
    tmp_path: Path, in_shares: list[int], kind: StateKind, seed: int
) -> None:
    """Also where a key begins anew between segments."""
    deletes = seed % 3 == 0
    place = Place("delta-rs/log", tmp_path)
    History(place, kind, deletes, "put" if deletes else "merge").run_transactions(Random(seed), 12)
    place.close()
    assert in_shares
