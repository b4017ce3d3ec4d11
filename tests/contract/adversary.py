"""An adversary: another writer of a Delta table, who strikes in the moment before something of ours is committed.

When that is, is known from the libraries alone, not from the code under test: each way to a Delta commit goes through
one of their functions, or makes the log's next entry by a link, in an object store by a put.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import obstore
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.table import TableAlterer

ALWAYS = 1_000


class Adversary:
    """Strikes right before Delta commits: `times` of them, after the first `passes`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.struck, self.seen = 0, 0
        self._strike: Callable[[], object] = lambda: None
        self._passes, self._times = 0, 0
        self._is_striking = False
        self._wrap(patch, os, "link")
        self._wrap(patch, obstore, "put")
        self._wrap(patch, DeltaTable, "create_write_transaction")
        self._wrap(patch, DeltaTable, "restore")
        self._wrap(patch, TableAlterer, "set_table_properties")
        self._wrap(patch, TableAlterer, "add_columns")
        for name, module in list(sys.modules.items()):
            if name.startswith(("state.", "transactional.")) and hasattr(module, "write_deltalake"):
                self._wrap(patch, module, "write_deltalake")

    def lies_in_wait(self, strike: Callable[[], object], passes: int = 0, times: int = 1) -> None:
        """From now on strike."""
        self.struck = self.seen = 0
        self._strike, self._passes, self._times = strike, passes, times

    def _wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        write = getattr(owner, name)

        def wrapped(*given: Any, **named: Any) -> Any:
            self._comes()
            return write(*given, **named)

        patch.setattr(owner, name, wrapped)

    def _comes(self) -> None:
        if self._is_striking:
            return
        self.seen += 1
        if self._passes < self.seen <= self._passes + self._times:
            self._is_striking = True
            self.struck += 1
            try:
                self._strike()
            finally:
                self._is_striking = False


@dataclass(frozen=True, slots=True)
class Others:
    """What another writer can do to a table, by its path."""

    path: Path | str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> DeltaTable:
        """The table as it is now."""
        return DeltaTable(self.path, storage_options=dict(self.options))

    def rewrites(self) -> None:
        """The same rows in other files: OPTIMIZE with ZORDER."""
        self.table.optimize.z_order(["word"])

    def rewrites_and_cleans(self) -> None:
        """The same, again and again; then there is a checkpoint, and of the log nothing but what comes after it."""
        for _ in range(3):
            self.rewrites()
        self.cleans()

    def declares(self) -> None:
        """A table property."""
        self.table.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 31 minutes"})

    def notes(self) -> None:
        """An app transaction of another one."""
        properties = CommitProperties(app_transactions=[Transaction("somebody", 7)])
        self.table.create_write_transaction([], "append", self.table.schema(), commit_properties=properties)

    def checkpoints(self) -> None:
        """A checkpoint."""
        self.table.create_checkpoint()

    def cleans(self) -> None:
        """A checkpoint, and the log before it is gone."""
        table = self.table
        table.create_checkpoint()
        for entry in Path(self.path, "_delta_log").glob("*.json"):
            if int(entry.stem) < table.version():
                entry.unlink()

    def vacuums(self) -> None:
        """A vacuum of all that is no part of the table and older than the table says."""
        self.table.vacuum(dry_run=False, full=True)

    def deletes(self) -> None:
        """A DELETE of a row."""
        self.table.delete("word = 'dog'")

    def updates(self) -> None:
        """An UPDATE of a row."""
        self.table.update(new_values={"count": 7}, predicate="word = 'dog'")

    def appends(self) -> None:
        """An INSERT of a row."""
        table = self.table
        deltalake.write_deltalake(table, pa.table(table.to_pyarrow_table().slice(0, 1)), mode="append")

    def restores(self) -> None:
        """A RESTORE to the first version."""
        self.table.restore(0)


HARMLESS = ("rewrites", "rewrites_and_cleans", "declares", "notes", "checkpoints", "cleans", "vacuums")
HARMFUL = ("appends", "deletes", "updates", "restores")
