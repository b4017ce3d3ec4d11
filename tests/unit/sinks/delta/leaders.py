"""A leader of a Delta sink without a topology, and what its table has."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from sinks import DeltaSink
from sinks.delta.run_files import RUNS_FOLDER
from transactional.core.ports import PublishedRecords, SinkOwner
from transactional.core.store.outbox import Publication
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema

Row = tuple[Any, ...]


class Leader:
    """One leader of a sink, without a topology."""

    def __init__(
        self,
        folder: Path,
        fence_id: int,
        store_id: str = "store",
        name: str = "events",
        fields: str = "n long",
        **options: Any,
    ) -> None:
        self.fields = Schema.parse(fields)
        self.sink = DeltaSink(folder / "events", **options)
        self.sink.check_input(self.fields, used_by="sink 'events'")
        self.owner = SinkOwner("landing", name, store_id, AttemptId(fence_id))

    def open(self, *, has_published: bool = False) -> Leader:
        """Take over as a leader does."""
        self.sink.look(self.owner)
        self.sink.open(self.owner, has_published=has_published)
        return self

    def publish(self, *group: PublishedRecords) -> None:
        """Publish a group, and wait for the upkeep that it begins."""
        self.sink.publish(group)
        self.sink.publisher.upkeep.wait()

    def stage(self, txid: int, attempt_id: int, run: str = "run") -> PublishedRecords:
        """Stage a row with the number of the attempt."""
        return self.stage_rows(txid, attempt_id, [(attempt_id,)], run)

    def stage_rows(self, txid: int, attempt_id: int, rows: Sequence[Row], run: str = "run") -> PublishedRecords:
        """Stage rows."""
        attempt = TransactionAttempt(TxId(txid), AttemptId(attempt_id))
        schema = arrow_schema(self.fields)
        columns = [pa.array(values, field.type) for field, values in zip(schema, zip(*rows, strict=True), strict=True)]
        records = self.sink.encode(pa.record_batch(columns, schema=schema))
        return PublishedRecords(Publication(run, attempt), self.sink.stage(attempt, records))


def numbers(folder: Path) -> list[int]:
    return sorted(row["n"] for row in DeltaTable(str(folder / "events")).to_pyarrow_table().to_pylist())


def table_rows(folder: Path, *columns: str) -> list[Row]:
    """The rows of the table, sorted, without those of `txid` unless columns are named."""
    table = DeltaTable(str(folder / "events")).to_pyarrow_table()
    names = columns or tuple(name for name in table.column_names if name != "txid")
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)


def aged(folder: Path) -> None:
    """Let all files of the table be written two hours earlier."""
    for path in (folder / "events").rglob("*.*"):
        os.utime(path, (path.stat().st_mtime - 7_200,) * 2)


def run_names(folder: Path) -> set[str]:
    """The transaction and attempt of each file in the folder of runs."""
    return {"-".join(path.name.split("-")[:2]) for path in (folder / "events" / RUNS_FOLDER).iterdir()}


def table_files(folder: Path) -> list[str]:
    return sorted(pa.table(DeltaTable(str(folder / "events")).get_add_actions())["path"].to_pylist())


def entry_actions(folder: Path, version: int) -> list[dict[str, Any]]:
    lines = (folder / "events" / "_delta_log" / f"{version:020}.json").read_text("utf-8").splitlines()
    return list(map(json.loads, lines))
