"""Tables in the layout of today, as they were written when it was introduced: they are opened and continued."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.fixtures.tables.make import HERE, OWNER, states, write
from transactional.model.attempt import TxId


@pytest.mark.parametrize("kind", ["merge", "log", "sqlite"])
@pytest.mark.parametrize("txid", [2, 3])
def test_a_table_is_opened_and_continued(kind: str, txid: int, tmp_path: Path) -> None:
    """By a replay of the newest transaction, which is rolled back, or by the next one."""
    with tarfile.open(HERE / "written.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    state = states()[kind](tmp_path)
    state.open(OWNER, int)
    assert state.version() == 2
    assert read(state) == {"cat": 3, "owl": 1, "emu": 4}
    write(state, txid, {"cat": 5}, attempt_id=7)
    assert read(state) == ({"cat": 7, "owl": 1} if txid == 2 else {"cat": 8, "owl": 1, "emu": 4})
    assert read(state, txid - 1) == ({"cat": 2, "owl": 1} if txid == 2 else {"cat": 3, "owl": 1, "emu": 4})
    state.close()


def read(state: object, txid: int | None = None) -> dict[str, int]:
    """The counts by word."""
    rows = state.read(None if txid is None else TxId(txid))  # type: ignore[attr-defined]
    return {row["word"]: row["count"] for row in rows.to_pylist()}
