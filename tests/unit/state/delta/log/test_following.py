"""A reader that follows a table by its log knows what one knows that opens the table, whatever others do to it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from state.delta.log.entries import Entry
from state.delta.log.following import Part, PartitionFiles
from state.delta.opening import open_reader
from state.delta.read.segment_reader import SegmentReader
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.tables.data_files import DataFile, WrittenFile
from transactional.core.ports import Partials
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.names import compaction_of
from transactional.model.schema import Schema

OWNER = "topology/counts"
WORDS = ("a", "b", "c", "d", "e", "f")


class History:
    """A table in the log layout, its writer, and what others do to it."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.attempts: dict[int, TxId] = {}
        self.txid = self.number = 0
        self.state = self.opened()

    def opened(self) -> DeltaMapState:
        layout = LogLayout(compact_after=self.random.choice((1, 3)))
        state = DeltaMapState(self.folder, "word string", "n long", layout=layout)
        state.open(OWNER, self.attempts.__getitem__)
        return state

    def next_id(self, txid: int) -> AttemptId:
        self.number += 1
        self.attempts[self.number] = TxId(txid)
        return AttemptId(self.number)

    def transaction(self) -> None:
        """With a dead attempt, maybe, and the maintenance that is due."""
        self.txid += 1
        for _ in range(self.random.choice((1, 1, 2))):
            words = self.random.sample(WORDS, self.random.randrange(4))
            rows = pa.table({"word": words, "n": [1] * len(words)}, arrow_schema(Schema.parse("word string, n long")))
            attempt = TransactionAttempt(TxId(self.txid), self.next_id(self.txid))
            self.state.merge(attempt, Partials({"n": "sum"}, rows))
        self.state.parts.maintenance.maintain(TxId(self.txid), lambda: True)

    def fence(self) -> None:
        """Another process begins."""
        self.state.close()
        self.state = self.opened()
        fence_id = self.next_id(self.txid)
        self.state.version()
        self.state.fence(fence_id)

    def compact(self) -> None:
        """All of it."""
        self.state.compact()

    def declare(self) -> None:
        """Somebody sets a property."""
        properties = {"delta.logRetentionDuration": f"interval {self.random.randrange(30, 60)} minutes"}
        DeltaTable(self.folder).alter.set_table_properties(properties)

    def optimize(self) -> None:
        """Somebody puts small files together."""
        DeltaTable(self.folder).optimize.compact()

    def clean(self) -> None:
        """A checkpoint, and the log before it is gone."""
        table = DeltaTable(self.folder)
        table.create_checkpoint()
        for version in range(table.version()):
            (self.folder / "_delta_log" / f"{version:020}.json").unlink(missing_ok=True)
        self.fence()

    def rewind(self) -> None:
        """Back by one, if it is there."""
        before = [number for number, txid in self.attempts.items() if txid == self.txid - 1]
        compacted = DeltaTable(self.folder).transaction_version(compaction_of(OWNER)) or 0
        if not before or compacted >= self.txid - 1:
            return
        self.txid -= 1
        target = RewindTarget(TxId(self.txid), AttemptId(before[-1]), self.attempts.get)
        self.state.parts.rewind.rewind(target, self.next_id(self.txid))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
def test_what_is_followed_is_what_one_finds_that_opens_the_table(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    history = History(tmp_path / "t", random)
    history.transaction()
    followed, moved = (open_reader(history.state.location, OWNER, history.state.declared.columns) for _ in range(2))
    told(moved)
    own = (history.transaction,) * 8 + (history.fence, history.compact)
    others = (history.declare, history.optimize, history.clean, history.rewind)
    ahead = 0
    for _ in range(16):
        for _ in range(random.choice((1, 1, 3))):
            random.choice(own if random.random() < 0.85 else others)()
        followed.loaded.refresh()
        ahead += followed.loaded.is_ahead
        opened = open_reader(history.state.location, OWNER, history.state.declared.columns)
        # As a task is told which version to read.
        moved.loaded.move_to(opened.loaded.delta_version)
        assert told(followed) == told(moved) == told(opened)
    assert ahead > 5, "it was followed"


def told(table: object) -> list[object]:
    """All that a look-up goes by, and what it finds."""
    assert isinstance(table, SegmentReader)
    loaded, wanted = table.loaded, pa.table({"word": pa.array(WORDS)})
    segments = [(each.txid, each.rows, each.files, each.is_unique) for each in table.segments()]
    known = [loaded.version(), table.compacted_txid, loaded.delta_version, table.row_count(), dict(loaded.properties)]
    return [segments, known, table.search(TxId(10_000), wanted).sort_by("word").to_pylist()]


PLAIN = {"path": "txid=3/c.parquet", "partitionValues": {"txid": "3"}, "size": 70, "stats": '{"numRecords": 7}'}
KNOWN = PartitionFiles("txid", {"txid=1/a.parquet": Part(1, 5, 50), "txid=2/b.parquet": Part(2, 6, 60)})


def entry(
    add: dict[str, Any] | None = None,
    removed: str = "",
    actions: str = "add commitInfo txn",
    rewound: int | None = None,
) -> Entry:
    adds = () if add is None else (add,)
    paths = frozenset(str(each.get("path")) for each in adds)
    removes = frozenset([removed] if removed else [])
    return Entry(9, "WRITE", {}, True, False, paths, removes, None, rewound, adds, frozenset(actions.split()))


def test_what_a_transaction_does_is_followed() -> None:
    after = KNOWN.followed([entry(PLAIN, removed="txid=1/a.parquet"), entry()])
    assert after is not None
    assert after.by_partition() == [(2, 6, frozenset(["txid=2/b.parquet"])), (3, 7, frozenset(["txid=3/c.parquet"]))]
    assert (after.rows, KNOWN.rows) == (13, 11)


def test_a_replacement_is_followed_without_its_entry() -> None:
    written = WrittenFile(DataFile("txid=3/c.parquet", 70, 3), 7, "{}")
    after = KNOWN.replaced([DataFile("txid=1/a.parquet", 50, 1)], [written])
    assert after == KNOWN.followed([entry(PLAIN, removed="txid=1/a.parquet")])
    assert after.files_between(2, 3) == [written.part]
    assert after.files() == {DataFile("txid=2/b.parquet", 60, 2): 6, written.part: 7}


@pytest.mark.parametrize(
    "odd",
    [
        entry(PLAIN, actions="add metaData"),
        entry(PLAIN, actions="add protocol"),
        entry(PLAIN, actions="add domainMetadata"),
        entry(PLAIN, rewound=2),
        entry(removed="txid=4/nobody.parquet"),
        entry(PLAIN, removed="txid=3/c.parquet"),
        entry(PLAIN | {"path": "txid=2/b.parquet"}),
        entry(PLAIN | {"path": "txid=3/c%20d.parquet"}),
        entry(PLAIN | {"deletionVector": {"storageType": "u"}}),
        entry(PLAIN | {"stats": None}),
        entry(PLAIN | {"stats": "{}"}),
        entry(PLAIN | {"stats": "torn"}),
        entry(PLAIN | {"partitionValues": {"txid": None}}),
        entry(PLAIN | {"partitionValues": {}}),
        entry(PLAIN | {"partitionValues": {"day": "3"}}),
        entry({"path": "txid=3/c.parquet"}),
    ],
)
def test_what_is_out_of_the_ordinary_is_not(odd: Entry) -> None:
    """delta-rs knows what it means."""
    assert KNOWN.followed([odd]) is None
