"""The data files of a table's newest version, compared with what lies in its storage: by name, size and digest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from state.delta.tables.table import DeltaLocation, storage_of
from transactional.errors import StoreMismatch


@dataclass(frozen=True, slots=True)
class WrongFile:
    """A data file that is not as it was written. `size_bytes` is its size now, None: it is missing."""

    path: str
    written_bytes: int
    size_bytes: int | None

    def __str__(self) -> str:
        if self.size_bytes is None:
            return f"data file {self.path}, with {self.written_bytes} bytes, is missing: somebody has deleted it"
        return (
            f"data file {self.path} has {self.size_bytes} bytes, not the {self.written_bytes} written: it was changed "
            "in place"
        )


def wrong_files(location: DeltaLocation, table: DeltaTable) -> Iterator[WrongFile]:
    """The files of a loaded version that are missing, or have another size. Raises `OSError`."""
    actions = pa.table(table.get_add_actions())
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    infos = storage_of(location).get_file_info([unquote(path) for path in paths])
    for path, written, info in zip(paths, sizes, infos, strict=True):
        if not info.is_file or info.size != written:
            yield WrongFile(path, written, info.size if info.is_file else None)


def check_live_files(location: DeltaLocation, table: DeltaTable) -> None:
    """Raise `StoreMismatch` for a file of a loaded version that is not as it was written. Raises `OSError`."""
    if (wrong := next(wrong_files(location, table), None)) is not None:
        raise StoreMismatch(
            f"Delta table {location}: {wrong}. Its rows would be missing from everything that is built on them; "
            "`transactional doctor` lists all such files. Restore them, or table and store together, from a backup; or "
            "take the topology back to a transaction before they were written: `transactional rewind`"
        )
