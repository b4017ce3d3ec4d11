"""The spouts of docs/howto/own-spout.md on a real Spark, into a real Delta table, with a restart in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state import DeltaMapState
from tests.docs.pages import ROOT, blocks
from tests.integration.tables import counts
from transactional import RunSummary, TopologyConfig, TransactionalTopologyBuilder, Tuple, run_topology
from transactional.core.store import AttemptRecord
from transactional.errors import RetriesExhausted
from transactional.operations.loading import open_store

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The classes that the page defines, as if they stood in the program that is run."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks((ROOT / "docs/howto/own-spout.md").read_text("utf-8")):
        if block.language == "python" and "class " in block.text:
            exec(block.text.partition("\n\n\nrun(")[0], names)
    return names


class Stumbles:
    """Fails at a word as long as a file is not there."""

    def __init__(self, word: str, file: Path) -> None:
        self.word, self.file = word, str(file)

    def __call__(self, row: Tuple) -> Tuple:
        if row["line"] == self.word and not Path(self.file).exists():
            raise OSError(f"{self.word} is not known yet")
        return row


def run(spout: Any, folder: Path, spark: SparkSession, *, bolt: Stumbles, attempts_max: int) -> RunSummary:
    builder = TransactionalTopologyBuilder("lines", "lines", spout, parallelism=2)
    builder.set_bolt("check", bolt, 2, output="line string").shuffle_grouping("lines")
    count = DeltaMapState(str(folder / "table"), key="line string").count()
    builder.set_committer_bolt("count", count).fields_grouping("check", "line")
    config = TopologyConfig(stop_when_drained=True, retry_pause_ms=1, attempts_max=attempts_max)
    return run_topology(builder.build(strict=True), store=store_of(folder), config=config, session=spark)


def store_of(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


def attempts(folder: Path, txid: int) -> list[AttemptRecord]:
    """The attempts at one transaction, the first one first."""
    store = open_store(store_of(folder))
    found = [record for record in store.attempts("lines", limit=100) if record.attempt.txid == txid]
    store.close()
    return found[::-1]


def test_a_restart_replays_the_recorded_bytes_and_goes_on(
    spark: SparkSession, tmp_path: Path, page: dict[str, Any]
) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.txt").write_text("cat\ncat\nemu\nemu\ndog\n")
    (lines / "b.txt").write_text("cat\ndog\nem")
    bolt = Stumbles("emu", tmp_path / "known")
    with pytest.raises(RetriesExhausted, match="emu is not known yet"):
        run(page["FolderSpout"](lines, batch_bytes=5), tmp_path, spark, bolt=bolt, attempts_max=1)
    assert counts(tmp_path / "table", "line") == {"cat": 3, "dog": 1}

    with (lines / "b.txt").open("a") as file:
        file.write("u\n")
    (lines / "c.txt").write_text("cow\n" * 1_000)
    (tmp_path / "known").touch()
    # Asked again it would take more of each file now; it is not asked, and what is recorded is emitted.
    run(page["FolderSpout"](lines, batch_bytes=1_000_000), tmp_path, spark, bolt=bolt, attempts_max=1)
    assert counts(tmp_path / "table", "line") == {"cat": 3, "dog": 2, "emu": 3, "cow": 1_000}
    failed, committed = attempts(tmp_path, 2)
    assert failed.batch.metadata == committed.batch.metadata
    assert [each.record_count for each in (failed.batch, committed.batch)] == [None, 2]


def test_arrow_and_parts_on_spark(spark: SparkSession, tmp_path: Path, page: dict[str, Any]) -> None:
    lines, bolt = tmp_path / "lines", Stumbles("emu", tmp_path)
    lines.mkdir()
    (lines / "a.txt").write_text("cat\nemu\n" * 20_000)
    columns, parts = tmp_path / "columns", tmp_path / "parts"
    for folder, spout in ((columns, page["ColumnsSpout"](lines)), (parts, page["Animals"]())):
        folder.mkdir()
        assert run(spout, folder, spark, bolt=bolt, attempts_max=1).failures == 0
    assert counts(columns / "table", "line") == {"cat": 20_000, "emu": 20_000}
    assert counts(parts / "table", "line") == {"cat": 990, "emu": 10}
