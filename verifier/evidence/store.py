"""The coordinator's store as rows, read with plain SQL from SQLite or PostgreSQL; nothing in it is changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, text

from verifier.evidence.databases import at_one_moment, open_database
from verifier.evidence.findings import CheckImpossible

_CHUNK = 20_000
_SCHEMA, _FORMAT = 7, 4
"""The version of the store's tables that is read, and the format of recorded batches."""
_WHAT = "store"
_Partition = tuple[str, int]
CountedPartition = Callable[[_Partition], bool | None]
"""Says whether the records of a partition reach what a column counts; None if nobody knows."""

_VERSION = "SELECT max(version) FROM transactional_schema"
_TOPOLOGY = """SELECT committed_txid, committed_attempt_id, attempt_id, fingerprint
    FROM transactional_topologies WHERE topology_id = :id"""
_IN_FLIGHT = "SELECT txid, attempt_id FROM transactional_transactions WHERE topology_id = :id"
_FENCES = "SELECT component_id, attempt_id, txid FROM transactional_fences WHERE topology_id = :id"
_ATTEMPTS = """SELECT txid, attempt_id, CASE WHEN phase = 'committed' THEN batch END, rows
    FROM transactional_attempts WHERE topology_id = :id ORDER BY txid, attempt_id"""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed transaction: by which attempt, and per partition `(start, until, records)`.

    `records` is None if nothing was read or recorded. `is_filtered` if tuples were set aside or came from letters, so
    that the number of counted tuples can't be derived from the records.
    """

    txid: int
    attempt_id: int
    ranges: Mapping[tuple[str, int], tuple[int, int, int | None]]
    records: int
    """Number of records that were read."""
    is_filtered: bool = False
    time_ms: int | None = None
    """When the batch was planned, in milliseconds since 1970; None: not recorded."""
    watermark_us: int | None = None
    """Before which event time its tuples are late, in microseconds since 1970."""
    late_behind: Mapping[str, int | None] = field(default_factory=dict)
    """The same by component with windows of windows, to which those rows are late that come behind all others."""
    awaited: tuple[tuple[str, int], ...] = ()
    """The partitions without a record for which windows wait: nothing more becomes late meanwhile."""
    told: int | None = None
    """The number of records that is noted beside the batch; None: none."""

    def watermark_of(self, component: str) -> int | None:
        """Before which event time the tuples of a component are late."""
        return self.late_behind.get(component, self.watermark_us)


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """All that a store knows about one topology.

    `committed` are the attempts that committed, by txid and then attempt id; `txid_of` every attempt; `in_flight` the
    attempt whose batch is recorded, per txid above the committed one; `fences` component → fence → txid.
    """

    topology_id: str
    committed_txid: int
    committed_attempt_id: int | None
    attempt_counter: int
    committed: tuple[CommittedBatch, ...] = ()
    txid_of: Mapping[int, int] = field(default_factory=dict)
    in_flight: Mapping[int, int] = field(default_factory=dict)
    fences: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replays_exactly(self) -> bool:
        """False for an opaque spout, which may continue if something is lost."""
        spout = self.fingerprint.get("spout", {})
        kinds = [str(value) for key, value in spout.items() if key == "kind" or key.endswith(".kind")]
        return not any(kind.startswith("Opaque") for kind in kinds)

    @property
    def streams(self) -> list[str]:
        """The streams of a topology with several spouts, or of one of streams; none if its only spout has no name."""
        return [key.removesuffix(".kind") for key in self.fingerprint.get("spout", {}) if key.endswith(".kind")]

    @property
    def oldest_attempt_id(self) -> int | None:
        """The oldest committed attempt in the store; earlier ones are deleted over time."""
        return min((batch.attempt_id for batch in self.committed), default=None)

    def joined_at(self, component: str) -> int:
        """The transaction after which a committer joined; 0 for one that was there from the beginning."""
        joining, own = self.fences.get(f"{component}/joining"), self.fences.get(component)
        # Older fences are deleted, but not the last one of joining.
        return joining[max(joining)] if joining else own[min(own)] if own else 0

    def knows_when_joined(self, component: str) -> bool:
        """False when the fence of its joining is not there: a store that took over from the tables has not seen it."""
        return f"{component}/joining" in self.fences or self.joined_at(component) == 0

    def fences_of(self, component: str) -> dict[int, int]:
        """Fence → txid, of a component's table."""
        return {**self.fences.get(f"{component}/joining", {}), **self.fences.get(component, {})}


class Store:
    """A store at a URL: `sqlite:///path` or `postgresql://…`. Raises `CheckImpossible`."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url, what=_WHAT)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def topology_ids(self) -> list[str]:
        """The topologies in the store."""
        return [row[0] for row in self._rows("SELECT topology_id FROM transactional_topologies ORDER BY topology_id")]

    def committed_txid(self, topology_id: str) -> int:
        """The committed txid of a topology. Raises `CheckImpossible` if the store does not know it."""
        rows = self._rows("SELECT committed_txid FROM transactional_topologies WHERE topology_id = :id", id=topology_id)
        if not rows:
            known = ", ".join(self.topology_ids()) or "(none)"
            raise CheckImpossible(f"there is no topology {topology_id!r} in the store; it has {known}")
        return int(rows[0][0])

    def history(self, topology_id: str) -> StoreHistory:
        """Everything about one topology, as of one moment. Raises `CheckImpossible`."""
        self.committed_txid(topology_id)
        with at_one_moment(self._engine, what=_WHAT) as connection:
            return _history(connection, topology_id)

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with at_one_moment(self._engine, what=_WHAT) as connection:
            _check_version(connection)
            return list(connection.execute(text(query), values))


def _check_version(connection: Connection) -> None:
    version = connection.execute(text(_VERSION)).scalar()
    if version != _SCHEMA:
        raise CheckImpossible(
            f"the store has schema version {version}, and this verifier reads version {_SCHEMA} only: verify it with "
            "the release that wrote it, or start with a new store"
        )


def _history(connection: Connection, topology_id: str) -> StoreHistory:
    key = {"id": topology_id}
    [(committed, attempt, counter, fingerprint)] = connection.execute(text(_TOPOLOGY), key)
    in_flight = {row[0]: row[1] for row in connection.execute(text(_IN_FLIGHT), key)}
    fences: dict[str, dict[int, int]] = {}
    for component, fence, txid in connection.execute(text(_FENCES), key):
        fences.setdefault(component, {})[fence] = txid
    txid_of: dict[int, int] = {}
    batches: list[CommittedBatch] = []
    found = connection.execution_options(yield_per=_CHUNK).execute(text(_ATTEMPTS), key)
    for part in found.partitions(_CHUNK):
        txid_of.update((row[1], row[0]) for row in part)
        batches += _batches([row for row in part if row[2] is not None])
    known = json.loads(fingerprint)
    return StoreHistory(
        topology_id, committed, attempt, counter, in_one_form(batches), txid_of, in_flight, fences, known
    )


def in_one_form(batches: Sequence[CommittedBatch]) -> tuple[CommittedBatch, ...]:
    """The batches, in order of txids, with every partition under the name that it has last: its own, as that of the
    only spout, or `stream/source`.

    A spout that is the only one has no name in front, and gets one when another spout joins. Every position is carried
    on from the one before: so a partition that is gone is the one that takes its place in the first batch that has it;
    of several with its source and index, the one that continues where it ended. A wrong position is still found.
    """
    names: dict[_Partition, _Partition] = {}
    found = list(batches[-1:])
    for before, batch in zip(reversed(batches[:-1]), reversed(batches), strict=False):
        if before.ranges.keys() != batch.ranges.keys():
            names |= {old: names.get(new, new) for old, new in _renamed(before, batch)}
        ranges = {names.get(at, at): offsets for at, offsets in before.ranges.items()} if names else before.ranges
        found.append(replace(before, ranges=ranges) if names else before)
    return tuple(reversed(found))


def _renamed(before: CommittedBatch, batch: CommittedBatch) -> Iterator[tuple[_Partition, _Partition]]:
    added = batch.ranges.keys() - before.ranges.keys()
    for partition in sorted(before.ranges.keys() - batch.ranges.keys()):
        source, index = partition
        found = sorted(new for new in added if new[1] == index and _is_of(new[0], source))
        going_on = [new for new in found if batch.ranges[new][0] == before.ranges[partition][1]]
        if found:
            yield partition, (going_on or found)[0]


def _is_of(one: str, other: str) -> bool:
    """Whether a source is the other one with the name of a stream, or without it."""
    return one.partition("/")[2] == other or other.partition("/")[2] == one


def _batches(rows: list[Any]) -> list[CommittedBatch]:
    try:
        # One call for many documents: one call each takes three times as long.
        documents = json.loads("[" + ",".join([row[2] for row in rows]) + "]")
        for document in documents:
            if document["version"] != _FORMAT:
                raise ValueError(f"it has format {document['version']!r}, expected {_FORMAT}")
        batches = (_batch(row[0], row[1], document) for row, document in zip(rows, documents, strict=True))
        return [replace(batch, told=row[3]) for row, batch in zip(rows, batches, strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckImpossible(
            f"a batch of transactions {rows[0][0]} to {rows[-1][0]} is not readable: {error!r}"
        ) from error


def _batch(txid: int, attempt_id: int, document: Mapping[str, Any]) -> CommittedBatch:
    ranges, records = {}, 0
    for row in document["partitions"]:
        ranges[row[0], row[1]] = (row[2], row[3], row[4])
        records += row[4] or 0
    is_filtered, (time_ms, watermark_us) = "excluded" in document or "letters" in document, _facts(document)
    behind = {component: late_us for component, late_us, _ in document.get("behind", ())}
    awaited = tuple((name, index) for name, index, _, _, is_awaited in document.get("listed", ()) if is_awaited)
    return CommittedBatch(txid, attempt_id, ranges, records, is_filtered, time_ms, watermark_us, behind, awaited)


def _facts(document: Mapping[str, Any]) -> tuple[int | None, int | None]:
    time_ms, watermark_us, *_ = document.get("facts") or (None, None)
    return time_ms, watermark_us
