"""Files that Spark writes into a table's folder before they are part of the table: the driver makes the Delta commit.

Spark never commits to a state's table. It would take the newest version for the one to start from, whatever was judged,
and move its Delta commit behind others' that do not disturb it by its own rules.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet
from pyarrow.fs import FileInfo, FileSelector, FileType, PyFileSystem

from state.delta.table import DeltaLocation
from transactional.errors import OperatingError

_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
"""Other paths are written in a log in more than one way."""


class Staging:
    """A folder of its own for what one job writes, in a table's folder. What nobody commits, vacuums delete."""

    def __init__(self, location: DeltaLocation) -> None:
        self._location, self._name, self._at_ms = location, f"staged-{uuid.uuid4()}", 0
        self._files = PyFileSystem(DeltaStorageHandler(location.uri, dict(location.storage_options)))

    @property
    def uri(self) -> str:
        """Where Spark is to write Parquet files."""
        return f"{self._location.uri}/{self._name}"

    def added(self, partition: Mapping[str, str | None]) -> list[AddAction]:
        """What was written, to be added to the table. On a disk the files are moved next to the others.

        Raises `OSError`.
        """
        every = self._files.get_file_info(FileSelector(self._name, recursive=True))
        written = [file for file in every if file.type == FileType.File and file.base_name.endswith(".parquet")]
        self._at_ms = max(file.mtime_ns for file in written) // 1_000_000  # Spark writes one also without rows
        found = [action for file in written if (action := self._action(file, partition)) is not None]
        if self._location.scheme == "file":
            shutil.rmtree(self.uri)
        return found

    def removed(self, files: Iterable[Mapping[str, Any]]) -> list[RemoveAction]:
        """Take files, as a table's add actions tell of them, out of it. Raises `OperatingError`."""
        actions = []
        for file in files:
            path, partition = file["path"], file.get("partition") or {}
            if not _PLAIN_PATH.fullmatch(path):
                raise OperatingError(f"Delta table {self._location} has a file {path!r}, which the state has not named")
            values = {name: None if value is None else str(value) for name, value in partition.items()}
            actions.append(RemoveAction(path, True, self._at_ms, file["size_bytes"], values))
        return actions

    def _action(self, file: FileInfo, partition: Mapping[str, str | None]) -> AddAction | None:
        rows, path = parquet.read_metadata(self._files.open_input_file(file.path)).num_rows, file.path
        if not rows:
            return None
        if self._location.scheme == "file":
            # Where vacuums look for the table's files.
            home = Path(self._location.uri, *(f"{name}={value}" for name, value in partition.items()))
            home.mkdir(exist_ok=True)
            Path(self._location.uri, file.path).rename(home / file.base_name)
            path = (home / file.base_name).relative_to(self._location.uri).as_posix()
        at_ms = file.mtime_ns // 1_000_000
        return AddAction(path, file.size, partition, at_ms, True, json.dumps({"numRecords": rows}))


def named(files: Iterable[dict[str, Any]], names: Collection[str], location: DeltaLocation) -> list[dict[str, Any]]:
    """The files with one of these names. Raises `OperatingError` when there is none with one of them."""
    wanted = {unquote(name) for name in names}
    found = [file for file in files if unquote(file["path"]).rsplit("/", 1)[-1] in wanted]
    if len({unquote(file["path"]).rsplit("/", 1)[-1] for file in found}) != len(wanted):
        raise OperatingError(f"Delta table {location} has been read by Spark from files that it is not made of")
    return found
