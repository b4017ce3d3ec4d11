"""What a power failure leaves of a Delta table on a disk: log files without content.

An entry may be truncated, or name files that do not exist; a checkpoint and the hint of the last one may be truncated.
Such a table can't be opened. While the system is running nobody sees this: what writes tables gives a file its name
once all of it is written. A torn file was never durable, so no durably committed transaction depends on it. But a file
that somebody has moved away looks the same: so whether the store has committed what is torn is looked up first.
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
class Torn:
    """A file of a log that has to be set aside, and why."""

    path: Path
    why: str


def torn_files(table: Path) -> list[Torn]:
    """The files that prevent a table from being opened and may be removed; empty if the table is intact.

    Also empty if what remains would not be a table: that needs a backup. Raises `OSError`.
    """
    log = table / LOG_FOLDER
    names = os.listdir(log) if log.is_dir() else []
    entries = sorted((name for name in names if ENTRY.fullmatch(name)), reverse=True)
    torn = list[Torn]()
    for name in entries:
        why = _why_torn(table, log / name)
        if not why:
            break
        torn.append(Torn(log / name, why))
    kept = [int(name[:20]) for name in entries[len(torn) :]]
    newest = max(kept, default=-1)
    checkpoints = {name: int(name[:20]) for name in names if CHECKPOINT.fullmatch(name)}
    torn += _torn_checkpoints(log, checkpoints, newest)
    gone = {each.path.name for each in torn}
    whole = {version for name, version in checkpoints.items() if name not in gone}
    if not set(range(max(whole, default=-1) + 1, newest + 1)) <= set(kept):
        return []
    return [*torn, *_torn_hint(log, whole)]


def without(torn: Collection[Torn], table: Path, owner: str) -> TornFiles:
    """What the table of an owner is without these files. Raises `OSError`, `DeltaError`."""
    log, gone = table / LOG_FOLDER, {each.path.name for each in torn}
    names = sorted((name for name in os.listdir(log) if ENTRY.fullmatch(name)), reverse=True)
    kept = [name for name in names if name not in gone]
    version = next(filter(None, (_version_in(log / name, owner) for name in kept)), None)
    if version is None and kept:
        # Only a checkpoint has it: others have written so much since.
        version = DeltaTable(table, version=int(kept[0][:20])).transaction_version(owner)
    lost = next(filter(None, (_version_in(log / name, owner) for name in names if name in gone)), None)
    what = "; ".join(f"{each.path.name}: {each.why}" for each in torn)
    return TornFiles(what, None if version is None else AttemptId(version), None if lost is None else AttemptId(lost))


def _version_in(entry: Path, owner: str) -> int | None:
    """The version that an entry gives the table of an owner; None: none, or none that can be read."""
    try:
        actions = [json.loads(line) for line in entry.read_bytes().splitlines() if b'"txn"' in line]
        return next((int(each["txn"]["version"]) for each in actions if each["txn"]["appId"] == owner), None)
    except (ValueError, LookupError, TypeError):
        return None


def set_aside(torn: Collection[Torn]) -> None:
    """Move the files out of the log, to names that readers ignore. Raises `OSError`."""
    for each in torn:
        # Files written together with it would otherwise be checked against what replaces it.
        version = each.path.name[:20]
        for other in (f".{each.path.name}.crc", f"{version}.crc", f".{version}.crc.crc"):
            each.path.with_name(other).unlink(missing_ok=True)
        each.path.rename(each.path.with_name(f"_torn_{each.path.name}.{uuid4()}.tmp"))
    sync({each.path.parent for each in torn})


def _why_torn(table: Path, entry: Path) -> str:
    content = entry.read_bytes()
    try:
        actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    except ValueError:
        return "it is truncated"
    if not actions or not all(isinstance(action, dict) for action in actions):
        return "it is truncated"
    if _lacks_its_end(entry, actions) or _lacks_what_was_summed(entry, content):
        return "it is truncated"
    for action in actions:
        if "add" in action and (why := _why_no_file(table, action["add"])):
            return why
    return ""


def _lacks_its_end(entry: Path, actions: list[dict[str, Any]]) -> bool:
    """Whether lines are missing. A topology's entry ends with the app transaction, unless Spark has written it."""
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
        made = sum("add" in action for action in actions)
        return made < int(note.get(ADDED_FILES_NOTE, 1)) or not any("remove" in action for action in actions)
    return "txn" not in actions[-1]


def _lacks_what_was_summed(entry: Path, content: bytes) -> bool:
    """Whether Spark's file system has a checksum for more than exists."""
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


def _why_no_file(table: Path, add: Mapping[str, object]) -> str:
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


def _torn_checkpoints(log: Path, checkpoints: Mapping[str, int], newest: int) -> list[Torn]:
    """Checkpoints of versions that do not exist, and the newest ones down to one that is intact."""
    torn = list[Torn]()
    for version in sorted(set(checkpoints.values()), reverse=True):
        parts = [log / name for name in checkpoints if checkpoints[name] == version]
        is_whole = all(part.suffix != ".parquet" or _has_footer(part) for part in parts)
        if version <= newest and is_whole:
            break
        why = "it is truncated" if not is_whole else f"the log ends with Delta version {newest}"
        torn += [Torn(part, why) for part in parts]
    return torn


def _torn_hint(log: Path, checkpoints: Collection[int]) -> list[Torn]:
    try:
        version = json.loads((log / _HINT).read_bytes())["version"]
    except FileNotFoundError:
        return []
    except (ValueError, LookupError, TypeError):
        return [Torn(log / _HINT, "it is truncated")]
    return [] if version in checkpoints else [Torn(log / _HINT, f"there is no checkpoint of Delta version {version}")]


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(len(_PARQUET))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_PARQUET)))
        return size > 2 * len(_PARQUET) and begin == file.read() == _PARQUET


def _has_footer(path: Path) -> bool:
    """Whether a checkpoint can be read at all: bytes of zeros between the marks are none."""
    try:
        return _is_whole_parquet(path) and parquet.read_metadata(path).num_row_groups >= 0
    except (pa.ArrowException, OSError):
        return False
