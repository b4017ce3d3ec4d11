"""A leader goes on over a log that lost what others need to open its table: it rebuilds the checkpoint it knows."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from state.delta.log.live_files import damaged_files, written_digests
from state.delta.state import DeltaMapState
from state.delta.upkeep.merged_upkeep import MergedUpkeep
from tests.contract.states import OWNER, CommittedMapState, Place, content, counts, write_by_files
from transactional.errors import OperatingError
from transactional.model.attempt import AttemptId
from transactional.model.plumbing.failures import LASTING_COUNT

EVERY = 4
"""Delta commits between two checkpoints."""
HURT_AFTER = 2 * EVERY + 2
"""Transactions before the log is hurt: the newest ones are in no checkpoint."""


def truncate_newest(log: Path) -> None:
    newest = max(log.glob("*.json"))
    newest.write_text(newest.read_text()[:80])


def delete_but_newest(log: Path) -> None:
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()


def corrupt_checkpoints(log: Path) -> None:
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")


def delete_checkpoints(log: Path) -> None:
    for checkpoint in log.glob("*.checkpoint.parquet"):
        checkpoint.unlink()


def misguide(log: Path) -> None:
    (log / "_last_checkpoint").write_text('{"version": 9999, "size": 1}')


CASES = [
    *((hurt, "merge") for hurt in (truncate_newest, delete_but_newest, corrupt_checkpoints, delete_checkpoints)),
    *((misguide, layout) for layout in ("merge", "log")),
]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place("delta-rs", tmp_path)


def opened(place: Place, layout: str) -> DeltaMapState:
    properties = {"delta.checkpointInterval": str(EVERY)}
    words = CommittedMapState(place.folder / "t", "word string", "count long", layout=layout, properties=properties)
    words.open(OWNER, place.txids.__getitem__)
    return words


def counted(words: DeltaMapState, place: Place, first: int, last: int) -> None:
    for txid in range(first, last + 1):
        words.merge(place.attempt(txid, txid), counts({"dog": 1, f"owl {txid}": 1}))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("hurt", "layout"), CASES, ids=[f"{hurt.__name__}-{layout}" for hurt, layout in CASES])
def test_what_nobody_could_open_is_opened_again(place: Place, hurt: Callable[[Path], None], layout: str) -> None:
    words = opened(place, layout)
    counted(words, place, 1, HURT_AFTER)
    hurt(place.folder / "t" / "_delta_log")
    with pytest.raises(DeltaError):
        DeltaTable(place.folder / "t")
    last = HURT_AFTER + EVERY * (LASTING_COUNT + 1)
    counted(words, place, HURT_AFTER + 1, last)
    assert words.parts.maintenance.lasting_failure == ""
    expected = {"dog": last, **{f"owl {txid}": 1 for txid in range(1, last + 1)}}
    assert content(DeltaMapState(place.folder / "t", "word string", "count long")) == expected
    assert DeltaTable(place.folder / "t").transaction_version(OWNER) == last
    again = opened(place, layout)
    counted(again, place, last + 1, last + EVERY)
    assert content(again)["dog"] == last + EVERY


def test_a_start_sets_a_checkpoint_aside_that_only_looks_whole(place: Place) -> None:
    words = opened(place, "log")
    counted(words, place, 1, HURT_AFTER)
    corrupt_checkpoints(place.folder / "t" / "_delta_log")
    again = CommittedMapState(place.folder / "t", "word string", "count long")
    again.parts.durability.set_aside_torn(OWNER, lambda torn: None)
    again.open(OWNER, place.txids.__getitem__)
    assert content(again)["dog"] == HURT_AFTER


def test_a_checkpoint_keeps_the_digests_of_files(place: Place) -> None:
    """Also one that is rebuilt. A file that another engine has written has none, and is not compared."""
    words = opened(place, "merge")
    counted(words, place, 1, 2 * EVERY)
    table = DeltaTable(place.folder / "t")
    table.create_checkpoint()
    digests = written_digests(words.location, table.version())
    [path] = table.file_uris()
    [name] = (Path(path).name,)
    assert digests[name] == hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
    assert list(damaged_files(words.location, table)) == []
    misguide(place.folder / "t" / "_delta_log")
    words.open_table.upkeep._rebuild_checkpoint()
    assert written_digests(words.location, table.version())[name] == digests[name]
    Path(path).write_bytes(Path(path).read_bytes()[::-1])
    [damaged] = damaged_files(words.location, table)
    assert "but other ones" in str(damaged)
    write_deltalake(table, words.declared.columns.table_schema.empty_table(), mode="overwrite")
    assert list(damaged_files(words.location, DeltaTable(place.folder / "t"))) == []


def test_where_another_table_lies_in_its_place_nothing_is_rebuilt(place: Place) -> None:
    words = opened(place, "merge")
    counted(words, place, 1, HURT_AFTER)
    log = place.folder / "t" / "_delta_log"
    delete_but_newest(log)
    newest = max(log.glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = "part-00000-another.parquet"
    newest.write_text("\n".join(map(json.dumps, actions)))
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    table = words.open_table.upkeep
    for _ in range(LASTING_COUNT + 1):
        table._failures.add("writing a checkpoint", "it can't be read")
        table._try("writing a checkpoint", table._rebuild_checkpoint)
    assert "another table lies in its place" in words.parts.maintenance.lasting_failure
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


def test_another_table_whose_newest_entry_has_no_file_is_left_alone(place: Place) -> None:
    """Its log declares another id. Where nothing does, the files that the leader knows are not there."""
    words, folder = opened(place, "merge"), place.folder / "t"
    counted(words, place, 1, 3)
    words.fence(AttemptId(4))
    shutil.rmtree(folder)
    another = opened(place, "merge")
    counted(another, place, 1, 3)
    another.fence(AttemptId(4))
    misguide(folder / "_delta_log")
    with pytest.raises(OperatingError, match="another table lies in its place"):
        words.open_table.upkeep._rebuild_checkpoint()
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(OperatingError, match=r"1 of its data files, such as .* are missing"):
        another.open_table.upkeep._rebuild_checkpoint()
    assert not list(folder.glob("_delta_log/*.checkpoint.parquet"))


@pytest.mark.parametrize("upkeep", ["compaction", "checkpoint"])
def test_after_upkeep_a_leader_knows_which_attempt_wrote_the_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch, upkeep: str
) -> None:
    """Also where the entry of that attempt is lost then; an earlier entry names an earlier attempt."""
    write_by_files(monkeypatch)
    words, log = opened(place, "merge"), place.folder / "t" / "_delta_log"
    for txid in (1, 2, 3):
        DeltaMapState.merge(words, place.attempt(txid, txid), counts({f"owl {txid}": 1}))
    table = words.open_table.upkeep
    assert isinstance(table, MergedUpkeep)
    if upkeep == "compaction":
        table._compact_files()
        assert '"txn"' not in max(log.glob("*.json")).read_text()
    else:
        table._begin_checkpoint()
        table.loaded.log.checkpoint.wait(lambda: True)
        table._end_checkpoint()
        delete_checkpoints(log)
    transaction = log / f"{3:020}.json"
    assert OWNER in transaction.read_text()
    if upkeep == "compaction":
        transaction.unlink()
    else:
        misguide(log)
        (log / f"{2:020}.json").unlink()
    assert table._rebuild_checkpoint()
    assert DeltaTable(place.folder / "t").transaction_version(OWNER) == 3
    counted(words, place, 4, 4)
    assert DeltaTable(place.folder / "t").transaction_version(OWNER) == 4


def test_without_the_attempt_that_wrote_the_rows_nothing_is_rebuilt(place: Place) -> None:
    words, log = opened(place, "merge"), place.folder / "t" / "_delta_log"
    counted(words, place, 1, 3)
    words.open_table.loaded.reload()
    (log / f"{2:020}.json").unlink()
    with pytest.raises(OperatingError, match="the entry of Delta version 2 can't be read"):
        words.open_table.upkeep._rebuild_checkpoint()
    assert not list(log.glob("*.checkpoint.parquet"))


def test_a_rebuilt_checkpoint_names_removed_files(place: Place) -> None:
    """A vacuum keeps a file that was removed a moment ago, however old the file is."""
    words, folder = opened(place, "merge"), place.folder / "t"
    counted(words, place, 1, 3)
    for file in folder.glob("*.parquet"):
        os.utime(file, (0, 0))
    counted(words, place, 4, 4)
    log = folder / "_delta_log"
    misguide(log)
    hidden_sum = log / f".{words.open_table.loaded.delta_version:020}.checkpoint.parquet.crc"
    hidden_sum.write_bytes(b"of the bytes before")
    assert words.open_table.upkeep._rebuild_checkpoint()
    assert not hidden_sum.exists()
    for entry in log.glob("*.json"):
        entry.unlink()
    assert DeltaTable(folder).vacuum(dry_run=True, full=True) == []
