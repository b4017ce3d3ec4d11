"""Every durable effect of a run, numbered as it comes, and the crash before or after one of them.

A crash is what a power cut is for the process: from then on no effect happens, whichever thread wants it. Nothing
catches it: it is no `Exception`. What an effect that was under way in another thread does, it still does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableAlterer

from spouts import MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout
from state.delta.log.background import BackgroundWork
from state.delta.tables.scratch import FileScratch
from state.delta.tables.staging import STAGED_FOLDER, FileStager
from state.delta.upkeep import background_compaction
from state.delta.upkeep import merged_upkeep as delta_merged
from state.delta.upkeep import segment_upkeep as delta_segments
from state.delta.upkeep import table_upkeep as delta_upkeep
from state.delta.upkeep.background_compaction import BackgroundCompaction, WrittenCompaction
from state.delta.upkeep.staged_orphans import StagedOrphans
from state.delta.write import creating as delta_creating
from state.delta.write import engine_commits as delta_engine
from state.delta.write import entry as delta_entry
from tests.contract.states import write_by_files
from transactional.core.store import Lease
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.model.batch import BatchMetadata

BEFORE, AFTER = "before", "after"
WHENS = (BEFORE, AFTER)


class Crash(BaseException):
    """The process is gone."""


class Point(NamedTuple):
    """Where a run crashes: before or after its n-th effect; with a name, its n-th one of that name."""

    number: int
    when: str
    name: str = ""


@dataclass
class Effects:
    """The effects of one process. `names` are those that were begun; `on_crash` wakes up who waits for events."""

    crash_at: Point | None = None
    names: list[str] = field(default_factory=list)
    is_dead: bool = False
    has_given_up: bool = False
    on_crash: Callable[[], None] = field(default=lambda: None)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def numbered(self, name: str) -> Iterator[None]:
        """One effect. Raises `Crash` at its point, and always after that."""
        with self.lock:
            if self.is_dead:
                raise Crash
            self.names.append(name)
            numbers = {"": len(self.names), name: self.names.count(name)}
            self._die_at(numbers, BEFORE)
        yield
        with self.lock:
            self._die_at(numbers, AFTER)

    def give_up(self) -> NoReturn:
        """The proof itself is wrong."""
        with self.lock:
            self.is_dead = self.has_given_up = True
            self.on_crash()
        raise Crash

    def _die_at(self, numbers: Mapping[str, int], when: str) -> None:
        at = self.crash_at
        if self.is_dead or at is None or (numbers.get(at.name), when) != (at.number, at.when):
            return
        self.is_dead = True
        self.on_crash()
        raise Crash


class NumberedStore(SqlCoordinatorStore):
    """A real store, each of whose writes is an effect."""

    def __init__(self, url: str, effects: Effects) -> None:
        super().__init__(url)
        self.effects = effects

    def acquire(self, *given: Any, **named: Any) -> Lease:
        with self.effects.numbered("store: acquire"):
            return super().acquire(*given, **named)

    def renew(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: renew"):
            super().renew(*given, **named)

    def release(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: release"):
            super().release(*given, **named)

    def record_attempt(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_attempt"):
            super().record_attempt(*given, **named)

    def record_processed(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_processed"):
            super().record_processed(*given, **named)

    def record_commit(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_commit"):
            super().record_commit(*given, **named)

    def record_failure(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_failure"):
            super().record_failure(*given, **named)

    def record_start(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_start"):
            super().record_start(*given, **named)

    def record_recovery(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_recovery"):
            super().record_recovery(*given, **named)

    def record_fence(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: record_fence"):
            super().record_fence(*given, **named)

    def settle_sink(self, *given: Any, **named: Any) -> None:
        with self.effects.numbered("store: settle_sink"):
            super().settle_sink(*given, **named)

    def forget_before(self, *given: Any, **named: Any) -> int:
        with self.effects.numbered("store: forget_before"):
            return super().forget_before(*given, **named)


class Mirror:
    """Positions written elsewhere after each transaction commit, as a consumer group is told of them."""

    def __init__(self, file: Path, effects: Effects) -> None:
        self.file, self.effects = file, effects

    def write(self, batch: BatchMetadata) -> None:
        with self.effects.numbered("mirror: positions"):
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps({p.index: until for p, until in batch.positions().items()}))
            part.replace(self.file)

    def positions(self) -> dict[int, int]:
        """What is written, by partition."""
        if not self.file.exists():
            return {}
        return {int(partition): until for partition, until in json.loads(self.file.read_text()).items()}


class MirroringSpout(MemoryTransactionalSpout):
    """A transactional spout with a mirror."""

    mirror: Mirror

    def committed(self, batch: BatchMetadata) -> None:
        super().committed(batch)
        self.mirror.write(batch)


class OpaqueMirroringSpout(OpaqueMemoryTransactionalSpout):
    """An opaque spout with a mirror."""

    mirror: Mirror

    def committed(self, batch: BatchMetadata) -> None:
        super().committed(batch)
        self.mirror.write(batch)


class DeltaLogs:
    """Sees to it that no Delta commit of any table under a folder happens outside of an effect."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen = self.commits()

    def commits(self) -> int:
        """How many Delta commits all tables hold."""
        return sum(1 for _ in self.folder.glob("*/_delta_log/*.json"))

    @contextmanager
    def within(self) -> Iterator[None]:
        try:
            yield
        finally:
            # Also when it has failed: a clean-up makes a Delta commit before it begins.
            self.seen = self.commits()

    def are_as_seen(self) -> bool:
        """Whether nothing has been added since the last effect."""
        return self.commits() == self.seen


@contextmanager
def numbered_delta(effects: Effects, folder: Path, *, merges: bool, apart: bool) -> Iterator[None]:
    """All that this process writes to Delta tables under a folder is an effect; tables are maintained all the time.

    With `merges` small tables are written as large ones are, and so have files that are put together. With `apart`
    small compactions are written in the background, as large ones are.
    """
    logs = DeltaLogs(folder)

    def wrap(
        patch: pytest.MonkeyPatch, owner: type, name: str, uri: Callable[[Any], str], *, commits: bool = True
    ) -> None:
        write, number = getattr(owner, name), numbered if commits else effects.numbered

        def effect(self: Any, *given: Any, **named: Any) -> Any:
            with number(f"{uri(self)}: {name}"):
                return write(self, *given, **named)

        patch.setattr(owner, name, effect)

    @contextmanager
    def numbered(name: str) -> Iterator[None]:
        if not logs.are_as_seen():
            # An error in this thread would only be a reason to try again.
            effects.give_up()
        with logs.within(), effects.numbered(name):
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta_merged, "COMPACTION_INTERVAL", 2)
        patch.setattr(delta_merged, "FILES_MAX", 1)
        patch.setattr(delta_upkeep, "VACUUM_INTERVAL", 3)
        patch.setattr(delta_segments, "SWEEP_INTERVAL_S", -1)
        if merges:
            write_by_files(patch)
        patch.setattr(delta_entry, "write_entry", numbered_entry(numbered, delta_entry.write_entry))
        patch.setattr(delta_creating, "write_first", numbered_entry(numbered, delta_creating.write_first, "create"))
        patch.setattr(delta_engine, "write_deltalake", numbered_write(numbered))
        # Of the compaction of small files.
        wrap(patch, DeltaTable, "create_write_transaction", lambda table: name_of(table.table_uri))
        wrap(patch, DeltaTable, "vacuum", lambda table: name_of(table.table_uri))
        # No Delta commits: one may be under way meanwhile, in the thread of the commit phase, and is counted there.
        wrap(patch, FileStager, "stage", lambda stager: stager.folder.name, commits=False)
        wrap(patch, FileStager, "stage_batches", lambda stager: stager.folder.name, commits=False)
        wrap(patch, FileScratch, "write", lambda scratch: scratch.folder.name, commits=False)
        wrap(patch, FileScratch, "remove", lambda scratch: scratch.folder.name, commits=False)
        patch.setattr(BackgroundCompaction, "start", compact_at_once)
        patch.setattr(BackgroundWork, "start", done_at_once)
        if apart:
            patch.setattr(background_compaction, "BACKGROUND_ROWS", 0)
        wrap(patch, StagedOrphans, "delete", lambda orphans: name_of(orphans.location.uri))
        wrap(patch, TableAlterer, "set_table_properties", lambda alterer: name_of(alterer.table.table_uri))
        yield
        if not effects.is_dead or effects.has_given_up:
            assert logs.are_as_seen(), f"a Delta commit has no number: {logs.seen} have one, {logs.commits()} are there"


_START = BackgroundWork.start


def done_at_once(apart: BackgroundWork[Any], work: Callable[[], Any]) -> None:
    """What is done beside the transactions ends before the next one, so that its effects always come at the same
    place."""
    _START(apart, work)
    apart.wait(lambda: True)


def compact_at_once(apart: BackgroundCompaction, write: Callable[[], WrittenCompaction]) -> None:
    """A compaction is written in the thread that wants it, so that its effects always come at the same place."""
    apart._finished, apart._future = [write()], Future()
    apart._future.set_result(None)


def numbered_write(numbered: Callable[[str], AbstractContextManager[None]]) -> Callable[..., None]:
    """`write_deltalake`, as an effect: the rows of a transaction in the log layout, or a whole table."""

    def effect(table: DeltaTable, *given: Any, **named: Any) -> None:
        what = "write" if "predicate" in named else "compaction" if "schema_mode" in named else "rewrite"
        with numbered(f"{name_of(table.table_uri)}: {what}"):
            write_deltalake(table, *given, **named)

    return effect


def numbered_entry(
    numbered: Callable[[str], AbstractContextManager[None]], write: Callable[..., None], what: str = ""
) -> Callable[..., None]:
    """An entry of the log that is written without delta-rs, as an effect: the file of rows is there by then."""

    def effect(path: Path, actions: Sequence[Mapping[str, Any]], *given: Any) -> None:
        with numbered(f"{path.parent.parent.name}: {what or kind_of_entry(actions)}"):
            write(path, actions, *given)

    return effect


def kind_of_entry(actions: Sequence[Mapping[str, Any]]) -> str:
    """Say in a word whether an entry only has a version, or rewrites a table, or has a segment, or staged files."""
    adds = [action["add"] for action in actions if "add" in action]
    if not adds:
        return "removal" if any("remove" in action for action in actions) else "version"
    if any(add["path"].startswith(STAGED_FOLDER) for add in adds):
        return "staged files"
    return "write" if adds[0]["partitionValues"] else "rewrite"


def name_of(uri: str) -> str:
    """The name of a table's folder."""
    return Path(uri.rstrip("/")).name
