"""The data files of a table's newest version, compared with what lies in its storage: by name, size and digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from pyarrow.fs import FileSelector

from state.delta.log.entries import log_files, read_entry
from state.delta.log.log import ENTRY, LOG_FOLDER, WHOLE_CHECKPOINT
from state.delta.tables.data_files import new_digest
from state.delta.tables.table import DeltaLocation, list_data_files, open_storage
from transactional.model.errors import StoreMismatch
from transactional.model.names import DIGEST_TAG

_PART_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WrongFile:
    """A data file that is not as it was written. `size_bytes` is its size now, None: it is missing."""

    path: str
    written_bytes: int
    size_bytes: int | None

    def __str__(self) -> str:
        if self.size_bytes == self.written_bytes:
            return (
                f"data file {self.path} has {self.written_bytes} bytes, as were written, but other ones: it was "
                "damaged, or replaced by another file of the same size"
            )
        if self.size_bytes is None:
            return f"data file {self.path}, with {self.written_bytes} bytes, is missing: somebody has deleted it"
        return (
            f"data file {self.path} has {self.size_bytes} bytes, not the {self.written_bytes} written: it was changed "
            "in place"
        )


def wrong_files(location: DeltaLocation, table: DeltaTable) -> Iterator[WrongFile]:
    """Yield the files of a loaded version that are missing, or have another size. Raises `OSError`."""
    actions = pa.table(table.get_add_actions())
    paths, sizes = actions["path"].to_pylist(), actions["size_bytes"].to_pylist()
    stored_files = open_storage(location).get_file_info([unquote(path) for path in paths])
    for path, written_bytes, file in zip(paths, sizes, stored_files, strict=True):
        if not file.is_file or file.size != written_bytes:
            yield WrongFile(path, written_bytes, file.size if file.is_file else None)


def damaged_files(location: DeltaLocation, table: DeltaTable) -> Iterator[WrongFile]:
    """Yield the files of a loaded version whose bytes do not have the digest that is in the log.

    Files without a digest, as after an OPTIMIZE, are left out, and so are those of another size. Raises `OSError`.
    """
    storage = open_storage(location)
    digests = written_digests(location, table.version())
    for file in list_data_files(table):
        if (digest := digests.get(unquote(file.name))) is None:
            continue
        content, size_bytes = new_digest(), 0
        try:
            with storage.open_input_stream(unquote(file.name)) as stream:
                while part := stream.read(_PART_BYTES):
                    content.update(part)
                    size_bytes += len(part)
        except FileNotFoundError:
            continue
        if size_bytes == file.size_bytes and content.hexdigest() != digest:
            yield WrongFile(file.name, file.size_bytes, size_bytes)


def written_digests(location: DeltaLocation, version: int) -> dict[str, str]:
    """Return the digests of files by path, from a version's checkpoint and the later entries. Raises `OSError`."""
    storage, files = open_storage(location), log_files(location)
    names = [file.base_name for file in storage.get_file_info(FileSelector(LOG_FOLDER)) if file.is_file]
    checkpoints = sorted(name for name in names if WHOLE_CHECKPOINT.fullmatch(name) and int(name[:20]) <= version)
    adds: list[Mapping[str, Any]] = []
    base = int(checkpoints[-1][:20]) if checkpoints else -1
    if checkpoints:
        read = parquet.read_table(f"{LOG_FOLDER}/{checkpoints[-1]}", filesystem=storage, columns=["add"])
        adds += [add for add in read["add"].to_pylist() if add is not None]
    for name in sorted(filter(ENTRY.fullmatch, names)):
        if base < int(name[:20]) <= version:
            adds += read_entry(files, int(name[:20])).adds
    tagged = ((unquote(add["path"]), dict(add.get("tags") or {}).get(DIGEST_TAG)) for add in adds)
    return {path: digest for path, digest in tagged if digest is not None}


def check_live_files(location: DeltaLocation, table: DeltaTable) -> None:
    """Raise `StoreMismatch` for a file of a loaded version that is not as it was written. Raises `OSError`."""
    if (wrong := next(wrong_files(location, table), None)) is not None:
        raise StoreMismatch(
            f"Delta table {location}: {wrong}. Its rows would be missing from everything that is built on them; "
            "`transactional doctor` lists all such files. Restore them, or table and store together, from a backup; or "
            "take the topology back to a transaction before they were written: `transactional rewind`"
        )
