"""Corruptions of a topology that has run, each as somebody or something may cause it: in its store, log and files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction

from spouts.memory import OpaqueMemoryTransactionalSpout
from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from tests.unit.histories import History
from tests.unit.operations.doctor.patients import TABLES, Patient
from transactional.topology.builder import TransactionalTopologyBuilder
from transactional.topology.topology import Topology
from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import Kind

WORDS = ["cat", "dog", "cat", "owl", "cat", "emu", "cow", "cat", "dog", "cat"]
RUNS = (3, 6, 10)
"""So many words each run counts, in all."""
ATTEMPTS, FENCES, TOPOLOGIES = "transactional_attempts", "transactional_fences", "transactional_topologies"
Corrupts = Callable[[History], object]


class Planted(Patient):
    """Three runs over ten transactions: a table in the merge layout, and one in the log layout that is compacted."""

    def topology(self, words: list[str] = WORDS, key: str = "word") -> Topology:
        spout = OpaqueMemoryTransactionalSpout([[(word,) for word in words]], "word string", take=1)
        builder = TransactionalTopologyBuilder("words", "spout", spout)
        layouts: dict[str, str | LogLayout] = {"count": "merge", "other": LogLayout(compact_after=2)}
        for name, layout in layouts.items():
            state = DeltaMapState(self.folder / name, key, layout=layout)
            builder.set_committer_bolt(name, state.count()).fields_grouping("spout", "word")
        return builder.build()

    def verified(self) -> set[Kind]:
        """What the checker finds."""
        tables = [CheckedTable(name, str(self.folder / name), counts="count") for name in TABLES]
        return set(verify(self.url, "words", tables).counts)


def in_store(*statements: str) -> Corrupts:
    return lambda history: history.sql(*statements)


def in_batch(txid: int, place: int, by: int) -> Corrupts:
    """A number of a partition of a recorded batch: 2 and 3 are offsets, 4 counts records."""

    def change(partitions: list[list[Any]]) -> None:
        partitions[0][place] += by

    return lambda history: history.change_batch(txid, change)


def in_entry(component: str, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]], txid: int = 0) -> Corrupts:
    """The entry of a transaction, or the newest one."""

    def corrupt(history: History) -> None:
        version = history.version_of(component, txid) if txid else None
        history.change_actions(history.log_file(component, version), change)

    return corrupt


def in_rows(component: str, change: Callable[[list[dict[str, Any]]], object]) -> Corrupts:
    def corrupt(history: History) -> None:
        with history.changed_file(component) as rows:
            change(rows)

    return corrupt


def without(kind: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    return lambda actions: [action for action in actions if kind not in action]


def denied(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entry says that it changes no rows."""
    for action in actions:
        for said in action.values():
            if "dataChange" in said:
                said["dataChange"] = False
    return actions


def commit(component: str, app_id: str, version: int, count: str = "count + 1") -> Corrupts:
    """Somebody changes rows under an app id that is, or is like, the topology's."""

    def corrupt(history: History) -> None:
        properties = CommitProperties(app_transactions=[Transaction(f"words/{component}{app_id}", version)])
        history.delta(component).update({"count": count}, predicate="word = 'cat'", commit_properties=properties)

    return corrupt


def updated(component: str) -> Corrupts:
    return lambda history: history.delta(component).update({"count": "count + 1"}, predicate="word = 'cat'")


def overwritten_and_denied(component: str) -> Corrupts:
    def corrupt(history: History) -> None:
        updated(component)(history)
        history.change_actions(history.log_file(component), denied)

    return corrupt


def older_log(component: str, txid: int) -> Corrupts:
    """The newest entries are gone, as of a copy that was behind."""

    def corrupt(history: History) -> None:
        for version in range(history.version_of(component, txid), history.delta(component).version() + 1):
            history.log_file(component, version).unlink()

    return corrupt


def closed_hole(component: str, txid: int) -> Corrupts:
    """The log is as if a transaction had never been."""

    def corrupt(history: History) -> None:
        first, last = history.version_of(component, txid), history.delta(component).version()
        for version in range(first, last):
            shutil.copy(history.log_file(component, version + 1), history.log_file(component, version))
        history.log_file(component, last).unlink()

    return corrupt


def written_again(component: str, txid: int) -> Corrupts:
    def corrupt(history: History) -> None:
        last = history.delta(component).version()
        text = history.log_file(component, history.version_of(component, txid)).read_text()
        history.log_file(component, last + 1).write_text(text)

    return corrupt


def data_file(history: History, component: str) -> Path:
    return Path(history.delta(component).file_uris()[0])


def doubled(component: str) -> Corrupts:
    def corrupt(history: History) -> None:
        with pq.ParquetFile(data_file(history, component)) as opened:
            rows = opened.read()
        pq.write_table(pa.concat_tables([rows, rows]), data_file(history, component))

    return corrupt


def checkpointed(component: str, change: Callable[[Path], object]) -> Corrupts:
    """The log has a checkpoint, which somebody then changes, or the hint of it."""

    def corrupt(history: History) -> None:
        history.delta(component).create_checkpoint()
        change(history.folder / component / "_delta_log")

    return corrupt


def with_garbage_for_checkpoint(log: Path) -> None:
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")


def with_wrong_hint(log: Path) -> None:
    (log / "_last_checkpoint").write_text('{"version": 9999, "size": 1}')


def oldest_file_gone(history: History) -> None:
    """Of the log layout, whose other files are all there."""
    min(map(Path, history.delta("other").file_uris()), key=lambda path: path.stat().st_mtime_ns).unlink()


def flipped(history: History) -> None:
    """A bit of a value, of a file that can still be read."""
    file = data_file(history, "count")
    content = bytearray(file.read_bytes())
    content[content.index(b"cat")] ^= 1
    file.write_bytes(content)


def replaced_by_older(history: History) -> None:
    """A file of the same size, with the rows of an earlier transaction."""
    newest = data_file(history, "count")
    same = (path for path in newest.parent.glob("*.parquet") if path.stat().st_size == newest.stat().st_size)
    newest.write_bytes(next(path for path in same if path != newest).read_bytes())


def owned_by(component: str, owner: str) -> Corrupts:
    """The table says that it is another one's."""
    named = {"transactional.owner": owner}
    return lambda history: history.delta(component).alter.set_table_properties(named, raise_if_not_exists=False)


def swapped(history: History) -> None:
    """Each table lies where the other one was."""
    count, other, between = (history.folder / name for name in (*TABLES, "between"))
    count.rename(between)
    other.rename(count)
    between.rename(other)


def deleted(component: str) -> Corrupts:
    return lambda history: history.delta(component).delete("word = 'cow'")


def restored(component: str, txid: int) -> Corrupts:
    return lambda history: history.delta(component).restore(history.version_of(component, txid))


def entry(component: str, txid: int, change: Callable[[Path], object]) -> Corrupts:
    return lambda history: change(history.log_file(component, history.version_of(component, txid)))


def of_table(component: str) -> dict[str, Corrupts]:
    """What is done to either table."""
    return {
        "somebody has updated a row": updated(component),
        "somebody has updated a row, and denies it": overwritten_and_denied(component),
        "somebody has deleted a key": deleted(component),
        "an older version is restored": restored(component, 7),
        "a zombie has written": commit(component, "", 2),
        "an attempt that nobody knows has written": commit(component, "", 10_000, "count"),
        "a compaction is none": commit(component, "#compaction", 5),
        "a Delta commit has lost its attempt": in_entry(component, without("txn"), 8),
        "a Delta commit denies that it changes rows": in_entry(component, denied, 8),
        "the newest entries are gone": older_log(component, 8),
        "an entry is gone": entry(component, 5, Path.unlink),
        "an entry is empty": entry(component, 5, lambda path: path.write_text("")),
        "an entry is garbage": entry(component, 5, lambda path: path.write_text("{")),
        "a transaction has never been": closed_hole(component, 5),
        "a Delta commit is there twice": written_again(component, 10),
        "a data file is gone": lambda history: data_file(history, component).unlink(),
        "a data file is longer": doubled(component),
        "a value is another one": in_rows(component, lambda rows: rows[0].update(count=rows[0]["count"] + 1)),
        "a row is there twice": in_rows(component, lambda rows: rows.append(rows[0])),
        "a row is gone": in_rows(component, lambda rows: rows.pop()),
        "the checkpoint is garbage": checkpointed(component, with_garbage_for_checkpoint),
        "the last checkpoint is none": checkpointed(component, with_wrong_hint),
        "it says that it is another's": owned_by(component, "letters/count"),
        "it is gone": lambda history: shutil.rmtree(history.path(component)),
    }


CORRUPTIONS: Mapping[str, Corrupts] = {
    # --- the store
    "a transaction is lost": in_store(f"DELETE FROM {ATTEMPTS} WHERE txid = 5"),
    "the first transactions are lost": in_store(f"DELETE FROM {ATTEMPTS} WHERE txid BETWEEN 2 AND 4"),
    "the newest transaction is lost": in_store(f"DELETE FROM {ATTEMPTS} WHERE txid = 10"),
    "two transactions are exchanged": in_store(
        f"UPDATE {ATTEMPTS} SET txid = -7 WHERE txid = 7",
        f"UPDATE {ATTEMPTS} SET txid = 7 WHERE txid = 8",
        f"UPDATE {ATTEMPTS} SET txid = 8 WHERE txid = -7",
    ),
    "a commit became a failure": in_store(f"UPDATE {ATTEMPTS} SET phase = 'failed' WHERE txid = 5"),
    "the newest commit became a failure": in_store(f"UPDATE {ATTEMPTS} SET phase = 'failed' WHERE txid = 10"),
    "the store is wiped": in_store(
        *(f"DELETE FROM {table}" for table in (ATTEMPTS, FENCES)),
        f"UPDATE {TOPOLOGIES} SET committed_txid = 0, committed_attempt_id = NULL, attempt_id = 0",
    ),
    "the store went back": in_store(
        f"UPDATE {TOPOLOGIES} SET committed_txid = 8, "
        f"committed_attempt_id = (SELECT attempt_id FROM {ATTEMPTS} WHERE txid = 8)",
        f"DELETE FROM {ATTEMPTS} WHERE txid > 8",
    ),
    "the committed txid is too low": in_store(f"UPDATE {TOPOLOGIES} SET committed_txid = 8"),
    "the committed txid is too high": in_store(f"UPDATE {TOPOLOGIES} SET committed_txid = 12"),
    "another attempt committed": in_store(f"UPDATE {TOPOLOGIES} SET committed_attempt_id = 2"),
    "the counter is too low": in_store(f"UPDATE {TOPOLOGIES} SET attempt_id = 3"),
    "the fences are deleted": in_store(f"DELETE FROM {FENCES}"),
    "the newest fence is deleted": in_store(
        f"DELETE FROM {FENCES} WHERE attempt_id = (SELECT max(attempt_id) FROM {FENCES})"
    ),
    "a fence is of another transaction": in_store(f"UPDATE {FENCES} SET txid = txid + 3"),
    "an attempt id is another one": in_store(f"UPDATE {ATTEMPTS} SET attempt_id = 1000 WHERE txid = 5"),
    "a range begins later": in_batch(5, 2, 1),
    "a range begins earlier": in_batch(5, 2, -1),
    "a range ends later": in_batch(5, 3, 1),
    "a range ends earlier": in_batch(5, 3, -1),
    "a count of records is higher": in_batch(5, 4, 1),
    "a count of records is lower": in_batch(10, 4, -1),
    "the rows of an attempt are another number": in_store(f"UPDATE {ATTEMPTS} SET rows = rows + 1 WHERE txid = 5"),
    "a partition is forgotten": lambda history: history.change_batch(5, lambda partitions: partitions.clear()),
    "a batch is garbage": in_store(f"UPDATE {ATTEMPTS} SET batch = 'x' WHERE txid = 5"),
    "the newest batch is garbage": in_store(f"UPDATE {ATTEMPTS} SET batch = 'x' WHERE txid = 10"),
    # --- a table
    **{f"{what}, {component}": corrupts for component in TABLES for what, corrupts in of_table(component).items()},
    "a row is of a later transaction": in_rows("count", lambda rows: rows[0].update(txid=999)),
    "a row is older than what was before it": in_rows(
        "count", lambda rows: rows[0].update(prev_txid=rows[0]["txid"] + 1)
    ),
    "the tables are exchanged": swapped,
    "an older data file is gone": oldest_file_gone,
    "a bit of a data file is another": flipped,
    "a data file is an older one of the same size": replaced_by_older,
}
ROWS_ALONE = {
    *(f"{what}, {component}" for component in TABLES for what in ("a value is another one", "a row is there twice")),
    *(f"{what}, {component}" for component in TABLES for what in ("a row is gone",)),
    *(f"somebody has updated a row, and denies it, {component}" for component in TABLES),
    *("a row is of a later transaction", "a row is older than what was before it"),
}
"""Only the rows show it, which `verify` reads and the doctor does not."""
REFUSED = {
    *("the newest transaction is lost", "the store is wiped", "the store went back", "the committed txid is too low"),
    *("the committed txid is too high", "the counter is too low", "the newest batch is garbage"),
    *("the tables are exchanged", "an older data file is gone"),
    *(
        f"{what}, {component}"
        for component in TABLES
        for what in (
            *("somebody has updated a row", "somebody has deleted a key", "an older version is restored"),
            *("a zombie has written", "an attempt that nobody knows has written", "the newest entries are gone"),
            *("an entry is gone", "an entry is garbage", "a data file is gone", "a data file is longer"),
            *("it says that it is another's", "it is gone"),
        )
    ),
}
"""A start looks at where store and tables stand, and at who has written since: it does not look back."""
