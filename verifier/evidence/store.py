"""The coordinator's store, read with plain SQL from SQLite or PostgreSQL; nothing in it is changed.

`Store.history` returns everything about one topology as of one moment, as a `StoreHistory` of `CommittedBatch`es. It is
parsed here without the code of the framework. Partitions get their last names, so that positions can be followed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, text

from verifier.evidence.databases import connect_at_one_moment, open_database
from verifier.evidence.findings import CheckImpossible
from verifier.evidence.publications import Publications, read_publications

_CHUNK = 20_000
_SCHEMA, _FORMAT = 7, 4
"""The version of the store's tables that is read, and the format of recorded batches."""
_NAME = "store"
_Partition = tuple[str, int]
CountedPartition = Callable[[_Partition], bool | None]
"""Returns whether a column counts the records of a partition, None if that is not known."""

_VERSION = "SELECT max(version) FROM transactional_schema"
_TOPOLOGY = """SELECT committed_txid, committed_attempt_id, attempt_id, fingerprint
    FROM transactional_topologies WHERE topology_id = :id"""
_IN_FLIGHT = "SELECT txid, attempt_id FROM transactional_transactions WHERE topology_id = :id"
_FENCES = "SELECT component_id, attempt_id, txid FROM transactional_fences WHERE topology_id = :id"
_ATTEMPTS = """SELECT txid, attempt_id, CASE WHEN phase = 'committed' THEN batch END, rows
    FROM transactional_attempts WHERE topology_id = :id ORDER BY txid, attempt_id"""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed transaction: the attempt that committed it, and for each partition `(start, until, records)`.

    The number of records of a partition is None if nothing was read or recorded. `is_filtered` is true if tuples were
    set aside or came from dead letters: then records don't say how many tuples were counted.
    """

    txid: int
    attempt_id: int
    ranges: Mapping[tuple[str, int], tuple[int, int, int | None]]
    records: int
    """The number of records that were read."""
    is_filtered: bool = False
    time_ms: int | None = None
    """The time at which the batch was planned, in milliseconds since 1970, None if it is not recorded."""
    watermark_us: int | None = None
    """The recorded watermark: tuples before this event time, in microseconds since 1970, are late."""
    component_watermarks: Mapping[str, int | None] = field(default_factory=dict)
    """The watermarks of components whose input rows are windows themselves."""
    awaited: tuple[tuple[str, int], ...] = ()
    """The partitions without a record that windows wait for: the watermark must not move meanwhile."""
    recorded_count: int | None = None
    """The number of records that the store has beside the batch, None if it has none."""

    def watermark_of(self, component: str) -> int | None:
        """Return the watermark that counts for a component."""
        return self.component_watermarks.get(component, self.watermark_us)


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """Everything that a store has about one topology.

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
        """Whether replays have the same tuples. False for an opaque spout, which continues if records are lost."""
        spout = self.fingerprint.get("spout", {})
        kinds = [str(kind) for key, kind in spout.items() if key == "kind" or key.endswith(".kind")]
        return not any(kind.startswith("Opaque") for kind in kinds)

    @property
    def streams(self) -> list[str]:
        """The streams in the names of partitions; empty for a topology with one spout, whose partitions have none."""
        return [key.removesuffix(".kind") for key in self.fingerprint.get("spout", {}) if key.endswith(".kind")]

    @property
    def oldest_attempt_id(self) -> int | None:
        """The oldest committed attempt in the store, which deletes older ones over time."""
        return min((batch.attempt_id for batch in self.committed), default=None)

    def joined_at(self, component: str) -> int:
        """Return the transaction after which a committer joined, 0 if it was there from the beginning."""
        joining_fences, fences = self.fences.get(f"{component}/joining"), self.fences.get(component)
        # Older fences are deleted, but not the last one of joining.
        return joining_fences[max(joining_fences)] if joining_fences else fences[min(fences)] if fences else 0

    def knows_when_joined(self, component: str) -> bool:
        """Return whether the store has the fence of a committer's joining; one restored from tables lacks it."""
        return f"{component}/joining" in self.fences or self.joined_at(component) == 0

    def fences_of(self, component: str) -> dict[int, int]:
        """Return the fences of a component's table, each with its txid."""
        return {**self.fences.get(f"{component}/joining", {}), **self.fences.get(component, {})}


class Store:
    """A store at a URL: `sqlite:///path` or `postgresql://…`. Raises `CheckImpossible`."""

    def __init__(self, url: str) -> None:
        self._engine = open_database(url, name=_NAME)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def topology_ids(self) -> list[str]:
        """Return the ids of the topologies in the store."""
        return [row[0] for row in self._rows("SELECT topology_id FROM transactional_topologies ORDER BY topology_id")]

    def committed_txid(self, topology_id: str) -> int:
        """Return the committed txid of a topology. Raises `CheckImpossible` if the store does not have the topology."""
        rows = self._rows("SELECT committed_txid FROM transactional_topologies WHERE topology_id = :id", id=topology_id)
        if not rows:
            names = ", ".join(self.topology_ids()) or "(none)"
            raise CheckImpossible(f"there is no topology {topology_id!r} in the store; it has {names}")
        return int(rows[0][0])

    def history(self, topology_id: str) -> StoreHistory:
        """Return everything about one topology, as of one moment. Raises `CheckImpossible`."""
        self.committed_txid(topology_id)
        with connect_at_one_moment(self._engine, name=_NAME) as connection:
            return _read_history(connection, topology_id)

    def publications(self, topology_id: str) -> Publications:
        """Return what the store has about the sinks of a topology, as of one moment. Raises `CheckImpossible`."""
        self.committed_txid(topology_id)
        with connect_at_one_moment(self._engine, name=_NAME) as connection:
            return read_publications(connection, topology_id)

    def _rows(self, query: str, **values: Any) -> list[Any]:
        with connect_at_one_moment(self._engine, name=_NAME) as connection:
            _check_version(connection)
            return list(connection.execute(text(query), values))


def _check_version(connection: Connection) -> None:
    version = connection.execute(text(_VERSION)).scalar()
    if version != _SCHEMA:
        raise CheckImpossible(
            f"the store has schema version {version}, and this verifier reads version {_SCHEMA} only: verify it with "
            "the release that wrote it, or start with a new store"
        )


def _read_history(connection: Connection, topology_id: str) -> StoreHistory:
    key = {"id": topology_id}
    [(committed, attempt, counter, fingerprint)] = connection.execute(text(_TOPOLOGY), key)
    in_flight = {row[0]: row[1] for row in connection.execute(text(_IN_FLIGHT), key)}
    fences: dict[str, dict[int, int]] = {}
    for component, fence, txid in connection.execute(text(_FENCES), key):
        fences.setdefault(component, {})[fence] = txid
    txid_of: dict[int, int] = {}
    batches: list[CommittedBatch] = []
    attempts = connection.execution_options(yield_per=_CHUNK).execute(text(_ATTEMPTS), key)
    for part in attempts.partitions(_CHUNK):
        txid_of.update((row[1], row[0]) for row in part)
        batches += _parse_batches([row for row in part if row[2] is not None])
    return StoreHistory(
        *(topology_id, committed, attempt, counter, with_last_names(batches), txid_of, in_flight, fences),
        json.loads(fingerprint),
    )


def with_last_names(batches: Sequence[CommittedBatch]) -> tuple[CommittedBatch, ...]:
    """Return the batches, in order of txids, with every partition under the last name that it had.

    The partitions of a topology's only spout have no stream in their names. They get one when another spout joins, and
    lose it when they are alone again. Positions are carried from batch to batch: so a partition that is missing from a
    batch is the one that takes its place there. Of several with its source and index, it is the one that continues
    where it ended. A wrong position is still reported.
    """
    last_names: dict[_Partition, _Partition] = {}
    renamed_batches = list(batches[-1:])
    for previous, batch in zip(reversed(batches[:-1]), reversed(batches), strict=False):
        if previous.ranges.keys() != batch.ranges.keys():
            last_names |= {old: last_names.get(new, new) for old, new in _find_renamed(previous, batch)}
        if last_names:
            ranges = {last_names.get(partition, partition): offsets for partition, offsets in previous.ranges.items()}
            renamed_batches.append(replace(previous, ranges=ranges))
        else:
            renamed_batches.append(previous)
    return tuple(reversed(renamed_batches))


def _find_renamed(previous: CommittedBatch, batch: CommittedBatch) -> Iterator[tuple[_Partition, _Partition]]:
    """Yield the old and the new name of each partition that was renamed between two batches."""
    added = batch.ranges.keys() - previous.ranges.keys()
    for partition in sorted(previous.ranges.keys() - batch.ranges.keys()):
        source, index = partition
        candidates = sorted(new for new in added if new[1] == index and _differ_by_stream_prefix(new[0], source))
        continuing = [new for new in candidates if batch.ranges[new][0] == previous.ranges[partition][1]]
        if candidates:
            yield partition, (continuing or candidates)[0]


def _differ_by_stream_prefix(old_name: str, new_name: str) -> bool:
    """Return whether one of two names is the other with a stream in front, as `clicks/topic` and `topic`."""
    return old_name.partition("/")[2] == new_name or new_name.partition("/")[2] == old_name


def _parse_batches(rows: list[Any]) -> list[CommittedBatch]:
    try:
        # One call for many documents: one call each takes three times as long.
        documents = json.loads("[" + ",".join([row[2] for row in rows]) + "]")
        for document in documents:
            if document["version"] != _FORMAT:
                raise ValueError(f"it has format {document['version']!r}, expected {_FORMAT}")
        batches = (_parse_batch(row[0], row[1], document) for row, document in zip(rows, documents, strict=True))
        return [replace(batch, recorded_count=row[3]) for row, batch in zip(rows, batches, strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckImpossible(
            f"a batch of transactions {rows[0][0]} to {rows[-1][0]} is not readable: {error!r}"
        ) from error


def _parse_batch(txid: int, attempt_id: int, document: Mapping[str, Any]) -> CommittedBatch:
    ranges, records = {}, 0
    for row in document["partitions"]:
        ranges[row[0], row[1]] = (row[2], row[3], row[4])
        records += row[4] or 0
    is_filtered, (time_ms, watermark_us) = "excluded" in document or "letters" in document, _parse_facts(document)
    watermarks = {component: late_us for component, late_us, _ in document.get("behind", ())}
    awaited = tuple((name, index) for name, index, _, _, is_awaited in document.get("listed", ()) if is_awaited)
    return CommittedBatch(txid, attempt_id, ranges, records, is_filtered, time_ms, watermark_us, watermarks, awaited)


def _parse_facts(document: Mapping[str, Any]) -> tuple[int | None, int | None]:
    time_ms, watermark_us, *_ = document.get("facts") or (None, None)
    return time_ms, watermark_us
