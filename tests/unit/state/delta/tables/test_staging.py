"""Staged files: what a task says that it has synced, it has synced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from state.delta.tables.staging import FileStager
from tests.synced_disk import SyncedDisk
from transactional.core.ports.staged import StagedFile
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema

ATTEMPT = TransactionAttempt(TxId(1), AttemptId(1))
ROWS = pa.table({"word": ["a", "b"], "count": [1, 2]})


def at_once(stager: FileStager) -> StagedFile:
    return stager.stage(ATTEMPT, ROWS)


def batch_by_batch(stager: FileStager) -> StagedFile:
    return stager.stage_batches(ATTEMPT, ROWS.to_reader(1))


@pytest.mark.parametrize("stage", [at_once, batch_by_batch])
def test_a_staged_file_that_is_said_to_be_synced_is_so_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Callable[[FileStager], StagedFile]
) -> None:
    disk = SyncedDisk(monkeypatch)
    staged = stage(FileStager(tmp_path, "topology/count", Schema.parse("word string, count long")))
    assert staged.is_synced
    assert (tmp_path / staged.path).stat().st_size == staged.size_bytes
    assert disk.unsynced(tmp_path) == []
