"""Log files of a Delta table on a disk that a power cut has torn.

An entry may be truncated, or name files that do not exist; a checkpoint and the hint of the last one may be truncated.
Such a table can't be opened. While the system runs, no program sees a torn file, since writers give a file its name
after its content. A torn file was never durable, so no durably committed transaction depends on it. But a file that
somebody has moved away looks the same. So it is first looked up whether the store has committed the torn transaction.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from state.delta.log.log import CHECKPOINT, ENTRY, LOG_FOLDER, entry_name
from transactional.core.ports import TornFiles
from transactional.model.attempt import AttemptId
from transactional.model.names import ADDED_FILES_NOTE, COMPACTED_FILES_NOTE, OWNER_NOTE
from transactional.model.plumbing.syncing import sync

_FIRST = entry_name(0)
_HINT = "_last_checkpoint"
_PARQUET = b"PAR1"
_CHUNK_BYTES, _CHECKSUM_BYTES, _HEADER_BYTES = 512, 4, 8
"""The extension of the checksums that Spark's file system keeps beside a file."""


@dataclass(frozen=True, slots=True)
class TornFile:
    """A file of a log that has to be set aside, and the reason."""

    path: Path
    reason: str


def find_torn_files(table: Path) -> list[TornFile]:
    """Return the files that prevent a table from being opened and may be removed. Raises `OSError`.

    The list is empty if the table is intact, and if the other files would not be a table, which needs a backup.
    """
    log = table / LOG_FOLDER
    names = os.listdir(log) if log.is_dir() else []
    entries = sorted((name for name in names if ENTRY.fullmatch(name)), reverse=True)
    torn = list[TornFile]()
    for name in entries:
        reason = _explain_torn_entry(table, log / name)
        if not reason:
            break
        torn.append(TornFile(log / name, reason))
    versions = [int(name[:20]) for name in entries[len(torn) :]]
    newest = max(versions, default=-1)
    checkpoints = {name: int(name[:20]) for name in names if CHECKPOINT.fullmatch(name)}
    torn += _torn_checkpoints(log, checkpoints, newest)
    torn_names = {file.path.name for file in torn}
    intact = {version for name, version in checkpoints.items() if name not in torn_names}
    if not set(range(max(intact, default=-1) + 1, newest + 1)) <= set(versions):
        return []
    return [*torn, *_torn_hint(log, intact)]


def describe_without(torn: Collection[TornFile], table: Path, owner: str) -> TornFiles:
    """Return the versions that an owner's table has, and loses, without these files. Raises `OSError`, `DeltaError`."""
    log, torn_names = table / LOG_FOLDER, {file.path.name for file in torn}
    names = sorted((name for name in os.listdir(log) if ENTRY.fullmatch(name)), reverse=True)
    intact = [name for name in names if name not in torn_names]
    version = next(filter(None, (_version_in(log / name, owner) for name in intact)), None)
    if version is None and intact:
        # Only a checkpoint has the version, since other programs have written many entries since.
        version = DeltaTable(table, version=int(intact[0][:20])).transaction_version(owner)
    lost_version = next(filter(None, (_version_in(log / name, owner) for name in names if name in torn_names)), None)
    reasons = "; ".join(f"{file.path.name}: {file.reason}" for file in torn)
    attempt_id = None if version is None else AttemptId(version)
    return TornFiles(reasons, attempt_id, None if lost_version is None else AttemptId(lost_version))


def _version_in(entry: Path, owner: str) -> int | None:
    """Return the version that an entry gives an owner's table, or None if it has none that can be read."""
    try:
        actions = [json.loads(line) for line in entry.read_bytes().splitlines() if b'"txn"' in line]
        return next((int(action["txn"]["version"]) for action in actions if action["txn"]["appId"] == owner), None)
    except (ValueError, LookupError, TypeError):
        return None


def set_aside(torn: Collection[TornFile]) -> None:
    """Move the files out of the log, to names that readers ignore. Raises `OSError`."""
    for file in torn:
        # The checksum files beside it would otherwise be compared with the file that replaces it.
        version = file.path.name[:20]
        for checksum in (f".{file.path.name}.crc", f"{version}.crc", f".{version}.crc.crc"):
            file.path.with_name(checksum).unlink(missing_ok=True)
        file.path.rename(file.path.with_name(f"_torn_{file.path.name}.{uuid4()}.tmp"))
    sync({file.path.parent for file in torn})


def _explain_torn_entry(table: Path, entry: Path) -> str:
    """Return why an entry is torn, or an empty text if it is intact."""
    content = entry.read_bytes()
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError:
        return "it is truncated"
    if not actions or not all(isinstance(action, dict) for action in actions):
        return "it is truncated"
    if _is_cut_off(entry, actions) or _is_shorter_than_summed(entry, content):
        return "it is truncated"
    for action in actions:
        if "add" in action and (reason := _explain_missing_file(table, action["add"])):
            return reason
    return ""


def _is_cut_off(entry: Path, actions: list[dict[str, Any]]) -> bool:
    """True if lines are missing. A topology's entry ends with the app transaction, unless Spark has written it."""
    if entry.name == _FIRST and not {"metaData", "protocol"} <= {name for action in actions for name in action}:
        return True
    commit = next((action["commitInfo"] for action in actions if "commitInfo" in action), None)
    if not isinstance(commit, dict) or str(commit.get("engineInfo", "")).startswith("Apache-Spark"):
        return False
    try:
        note = json.loads(commit.get("userMetadata") or "null")
    except (ValueError, TypeError):
        return False
    if not isinstance(note, dict) or OWNER_NOTE not in note:
        return False
    if COMPACTED_FILES_NOTE in note:
        add_count = sum("add" in action for action in actions)
        return add_count < int(note.get(ADDED_FILES_NOTE, 1)) or not any("remove" in action for action in actions)
    return "txn" not in actions[-1]


def _is_shorter_than_summed(entry: Path, content: bytes) -> bool:
    """True if the checksums of Spark's file system are for more bytes than the entry has."""
    try:
        sums = entry.with_name(f".{entry.name}.crc").read_bytes()[_HEADER_BYTES:]
    except FileNotFoundError:
        return False
    chunks = -(-len(content) // _CHUNK_BYTES)
    last = content[(chunks - 1) * _CHUNK_BYTES :]
    summed = sums[(chunks - 1) * _CHECKSUM_BYTES :][:_CHECKSUM_BYTES]
    # Missing checksums are torn themselves.
    return len(sums) > chunks * _CHECKSUM_BYTES or (
        len(summed) == _CHECKSUM_BYTES and int.from_bytes(summed) != zlib.crc32(last)
    )


def _explain_missing_file(table: Path, add: Mapping[str, object]) -> str:
    """Return why a file that an entry adds is missing or torn, or an empty text if it is intact."""
    path = str(add.get("path", ""))
    if "://" in path or path.startswith("file:"):
        return ""
    for name in (unquote(path), path):
        try:
            size = (table / name).stat().st_size
        except FileNotFoundError:
            continue
        if size != add.get("size"):
            return f"the file {path} that it adds has {size} bytes instead of {add.get('size')}"
        return "" if _is_whole_parquet(table / name) else f"the file {path} that it adds is torn"
    return f"the file {path} that it adds does not exist"


def _torn_checkpoints(log: Path, checkpoints: Mapping[str, int], newest: int) -> list[TornFile]:
    """Return checkpoints of versions that do not exist, and the newest ones down to an intact one."""
    torn = list[TornFile]()
    for version in sorted(set(checkpoints.values()), reverse=True):
        parts = [log / name for name in checkpoints if checkpoints[name] == version]
        is_intact = all(part.suffix != ".parquet" or _has_footer(part) for part in parts)
        if version <= newest and is_intact:
            break
        reason = "it is truncated" if not is_intact else f"the log ends with Delta version {newest}"
        torn += [TornFile(part, reason) for part in parts]
    return torn


def _torn_hint(log: Path, checkpoints: Collection[int]) -> list[TornFile]:
    try:
        version = json.loads((log / _HINT).read_bytes())["version"]
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError):
        return [TornFile(log / _HINT, "it is truncated")]
    return (
        [] if version in checkpoints else [TornFile(log / _HINT, f"there is no checkpoint of Delta version {version}")]
    )


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(len(_PARQUET))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_PARQUET)))
        return size > 2 * len(_PARQUET) and begin == file.read() == _PARQUET


def _has_footer(path: Path) -> bool:
    """True if a checkpoint can be read, which is not so if there are zeros between its magic bytes."""
    try:
        return _is_whole_parquet(path) and parquet.read_metadata(path).num_row_groups >= 0
    except (pa.ArrowException, OSError):
        return False
