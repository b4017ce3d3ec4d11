"""All ways in which a state writes its Delta table: each one Delta commit, or several, of which one is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from state.delta.segments.log_layout import LogLayout
from state.delta.state import DeltaMapState
from state.delta.upkeep.segment_upkeep import SegmentUpkeep
from tests.contract.states import OWNER, Place
from transactional.core.ports import Partials
from transactional.core.ports.state_parts import RewindTarget
from transactional.model.absent import ABSENT, Absent
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt, TxId
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

BEFORE = {"dog": 2, "cat": 1, "cow": 1}
AFTER = {"dog": 3, "cat": 1, "cow": 1, "bird": 5}
WITHOUT_COW = {"dog": 3, "cat": 1, "bird": 5}
"""The third transaction has brought the cow: replayed without it, it is gone; it is the first to expire, too."""
NEVER = LogLayout(compact_after=None)
STAGED = LogLayout(compact_after=None, staged_bytes=0)
OFTEN = LogLayout(compact_after=3)
SEEN = {"values": "count long, seen timestamp"}
EXPIRES = {"expires": "seen", "after": "10 seconds"}


@dataclass(frozen=True)
class Way:
    """A way to write: to a table of three transactions a fourth one, or something else; there the adversary strikes."""

    write: Callable[[DeltaMapState, Place], None]
    leaves: dict[str, int]
    layout: str | LogLayout = "merge"
    turns_to: LogLayout | None = None
    passes: int = 0
    """So many Delta commits come before the one that is meant."""
    next_txid: int = 5
    is_upkeep: bool = False
    """What is refused then is left for the next time."""
    is_small: bool = True
    by_delta_rs: bool = False
    puts: bool = False
    """Its values are put, not added up."""
    declared: Mapping[str, Any] = field(default_factory=dict)
    """What else its user says of the state."""
    gained: Mapping[str, Any] = field(default_factory=dict)
    """And what only since the third transaction."""
    needs_log: bool = False
    """What is gone from the log, it can't go back to."""

    @property
    def is_apart(self) -> bool:
        """Whether what is compacted is written in the background, however little it is."""
        return self.write is compact_in_background

    @property
    def is_fenced(self) -> bool:
        """Whether who was taken over is told so."""
        return not self.is_upkeep and self.write is not compact

    @property
    def is_attempted(self) -> bool:
        """Whether what is refused time and again fails an attempt."""
        is_second = bool(self.gained and self.passes)
        return not (self.is_upkeep or is_second or self.turns_to is not None)

    @property
    def goes_on_with(self) -> dict[str, int]:
        """What the fourth transaction leaves, however it is written."""
        return WITHOUT_COW if "expires" in {**self.declared, **self.gained} else AFTER


def begun(state: DeltaMapState, place: Place, txid: int, attempt_id: int) -> TransactionAttempt:
    """An attempt; from the fourth transaction on what was seen at first has expired."""
    attempt = place.attempt(txid, attempt_id)
    state.declared.begin(attempt, BatchFacts(5_000 if txid < 4 else 20_000))
    return attempt


def added(state: DeltaMapState, words: Mapping[str, int]) -> Partials:
    """Counts to be added up; of every other value the greatest stays."""
    seen = {word: datetime.fromtimestamp(1 if word == "cow" else 100, UTC) for word in words}
    given: dict[str, list[Any]] = {"word": [*words], "count": [*words.values()], "seen": [*seen.values()]}
    names = state.values.names
    schema = arrow_schema(Schema((*state.key, *state.values)))
    arrays = [pa.array(given.get(each.name, [None] * len(words)), each.type) for each in schema]
    combine = {name: "sum" if name == "count" else "max" for name in names}
    return Partials(combine, pa.Table.from_arrays(arrays, schema=schema))


def adds(
    state: DeltaMapState, place: Place, txid: int, attempt_id: int, words: Mapping[str, int], *, puts: bool = False
) -> None:
    """Write a transaction that counts words."""
    attempt = begun(state, place, txid, attempt_id)
    if not puts:
        state.merge(attempt, added(state, words))
        return
    found = state.get(attempt, [(word,) for word in words])
    state.put(attempt, {(word,): (found.get((word,), (0,))[0] + many,) for word, many in words.items()})


# --- ways -------------------------------------------------------------------------------------------------------------


def fourth(state: DeltaMapState, place: Place) -> None:
    adds(state, place, 4, 9, {"dog": 1, "bird": 5})


def upkeep(state: DeltaMapState, place: Place) -> None:
    fourth(state, place)
    state.parts.maintenance.maintain(TxId(4), lambda: True)


def compact_in_background(state: DeltaMapState, place: Place) -> None:
    upkeep(state, place)
    maintenance = state.open_table.upkeep
    assert isinstance(maintenance, SegmentUpkeep)
    if (future := maintenance.compactor.background._future) is not None:
        future.exception(timeout=240)
    state.parts.maintenance.maintain(TxId(4), lambda: True)


def again(state: DeltaMapState, place: Place) -> None:
    """The third transaction once more, as another batch."""
    adds(state, place, 3, 9, {"dog": 1, "bird": 5})


def put(state: DeltaMapState, place: Place) -> None:
    adds(state, place, 4, 9, {"dog": 1, "bird": 5}, puts=True)


def deletes(state: DeltaMapState, place: Place) -> None:
    attempt = begun(state, place, 4, 9)
    state.put(attempt, _put(state.get(attempt, [("dog",)]), without="cow"))


def _put(found: Mapping[Key, Any], *, without: str = "") -> dict[Key, tuple[Any, ...] | Absent]:
    put: dict[Key, tuple[Any, ...] | Absent] = {("dog",): (found["dog",][0] + 1,), ("bird",): (5,)}
    return {**put, (without,): ABSENT} if without else put


def tasks(state: DeltaMapState, place: Place) -> None:
    _as_job(state, begun(state, place, 4, 9))


def tasks_again(state: DeltaMapState, place: Place) -> None:
    _as_job(state, begun(state, place, 3, 9))


def _as_job(state: DeltaMapState, attempt: TransactionAttempt) -> None:
    """As the tasks of a step read and write; the driver commits what they have kept."""
    part = state.parts.tasks.for_tasks(attempt)
    assert part is not None
    found = part.get([("dog",), ("bird",)])
    state.parts.tasks.put_parts(
        attempt, [part.make_part(part.table({key: row}), tasks=2) for key, row in _put(found).items()]
    )


def staged(state: DeltaMapState, place: Place) -> None:
    _staged(state, begun(state, place, 4, 9))


def staged_again(state: DeltaMapState, place: Place) -> None:
    _staged(state, begun(state, place, 3, 9))


def _staged(state: DeltaMapState, attempt: TransactionAttempt) -> None:
    """Of two tasks, and what comes through the driver."""
    stager = state.parts.staging.stager(OWNER)
    assert stager is not None
    files = [stager.stage(attempt, added(state, words).table) for words in ({"dog": 2, "bird": 4}, {"bird": 1})]
    given = added(state, {"dog": -1})
    state.merge(attempt, Partials(given.combine, given.table, files))


def nothing(state: DeltaMapState, place: Place) -> None:
    adds(state, place, 4, 9, {})


def fence(state: DeltaMapState, place: Place) -> None:
    place.fence(state, 3, 9)


def compact(state: DeltaMapState, place: Place) -> None:
    del place
    state.compact()


def rewind(state: DeltaMapState, place: Place) -> None:
    """To the second transaction."""
    attempt = place.attempt(2, 2)
    state.parts.rewind.rewind(
        RewindTarget(attempt.txid, attempt.attempt_id, place.txids.get), place.attempt(2, 9).attempt_id
    )


EXPIRING = {**SEEN, **EXPIRES}
WITH_DELETES = {"deletes": True}
BACK = {"dog": 2, "cat": 1}
WAYS = {
    "an entry of our own": Way(fourth, AFTER),
    "file by file": Way(fourth, AFTER, is_small=False),
    "an overwrite": Way(fourth, AFTER, by_delta_rs=True),
    "a version without rows": Way(nothing, BEFORE),
    "a fence": Way(fence, BEFORE, next_txid=4),
    "a fence, then a column more": Way(fence, BEFORE, next_txid=4, passes=1, gained={"values": "count long, top long"}),
    "a fence, then deletes: a column": Way(fence, BEFORE, next_txid=4, passes=1, gained=WITH_DELETES),
    "a fence, then deletes: that there are some": Way(fence, BEFORE, next_txid=4, passes=2, gained=WITH_DELETES),
    "rows that begin to expire: that they do": Way(fourth, WITHOUT_COW, declared=SEEN, gained=EXPIRES),
    "a compaction of files": Way(upkeep, AFTER, is_small=False, is_upkeep=True, passes=1),
    "a rewind": Way(rewind, BACK, next_txid=3, needs_log=True),
    "rows of a log": Way(fourth, AFTER, layout=NEVER),
    "staged files: that there are some": Way(staged, AFTER, layout=STAGED),
    "staged files": Way(staged, AFTER, layout=STAGED, passes=1),
    "a compaction of segments": Way(compact, BEFORE, next_txid=4, layout=NEVER),
    "a compaction of segments that is due": Way(upkeep, AFTER, layout=OFTEN, is_upkeep=True, passes=1),
    "a compaction in the background: that there are staged files": Way(
        compact_in_background, AFTER, layout=OFTEN, is_upkeep=True, passes=1
    ),
    "a compaction in the background": Way(compact_in_background, AFTER, layout=OFTEN, is_upkeep=True, passes=2),
    "a rewind of a log": Way(rewind, BACK, next_txid=3, layout=NEVER, needs_log=True),
    "a table that becomes a log: how its values are combined": Way(fourth, AFTER, turns_to=NEVER),
    "a table that becomes a log: its base": Way(fourth, AFTER, turns_to=NEVER, passes=1),
    "a table that becomes a log: its first rows": Way(fourth, AFTER, turns_to=NEVER, passes=2),
}
"""Each Delta commit that is made by code of its own."""
CONTENTS = {
    "an entry of our own, a put": Way(put, AFTER, puts=True),
    "an entry of our own, a replay": Way(again, WITHOUT_COW, next_txid=4),
    "an entry of our own, what has expired goes": Way(fourth, WITHOUT_COW, declared=EXPIRING),
    "an entry of our own, by tasks": Way(tasks, AFTER, puts=True),
    "file by file, a replay": Way(again, WITHOUT_COW, next_txid=4, is_small=False),
    "file by file, what has expired goes": Way(fourth, WITHOUT_COW, is_small=False, declared=EXPIRING),
    "file by file, a put that deletes": Way(deletes, WITHOUT_COW, is_small=False, puts=True, declared=WITH_DELETES),
    "file by file, by tasks": Way(tasks, AFTER, is_small=False, puts=True),
    "an overwrite, a replay": Way(again, WITHOUT_COW, next_txid=4, by_delta_rs=True),
    "an overwrite, a put that deletes": Way(deletes, WITHOUT_COW, by_delta_rs=True, puts=True, declared=WITH_DELETES),
    "rows of a log, a replay": Way(again, WITHOUT_COW, next_txid=4, layout=NEVER),
    "rows of a log, what has expired goes": Way(fourth, WITHOUT_COW, layout=NEVER, declared=EXPIRING),
    "rows of a log, a put that deletes": Way(deletes, WITHOUT_COW, layout=NEVER, puts=True, declared=WITH_DELETES),
    "a version without rows of a log": Way(nothing, BEFORE, layout=NEVER),
    "a fence of a log": Way(fence, BEFORE, next_txid=4, layout=NEVER),
    "staged files, a replay": Way(staged_again, WITHOUT_COW, next_txid=4, layout=STAGED, passes=1),
    "staged files, what has expired goes": Way(
        staged, WITHOUT_COW, layout=STAGED, passes=1, declared={"key": "word string, seen timestamp", **EXPIRES}
    ),
    "staged files, by tasks": Way(tasks, AFTER, layout=STAGED, passes=1, puts=True),
    "staged files, by tasks, a replay": Way(tasks_again, WITHOUT_COW, next_txid=4, layout=STAGED, passes=1, puts=True),
}
"""The same Delta commits with what else a transaction may be, or in the other layout."""
EVERY_WAY = {**WAYS, **CONTENTS}
