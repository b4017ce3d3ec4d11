"""The coordinator's store as rows, read with plain SQL from SQLite or PostgreSQL; nothing in it is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError

COMMITTED = "committed"
_CHUNK = 20_000


class StoreUnreadable(Exception):
    """The store is not there, or not one."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed transaction: by which attempt, and per partition `(start, until, records)`.

    `records` is None where nothing was read or noted. `is_filtered` when tuples were set aside or came from letters, so
    that tuples that were counted can't be told from the records.
    """

    txid: int
    attempt_id: int
    ranges: Mapping[tuple[str, int], tuple[int, int, int | None]]
    is_filtered: bool = False

    @property
    def records(self) -> int:
        """Number of records that were read."""
        return sum(records or 0 for _, _, records in self.ranges.values())


@dataclass(frozen=True, slots=True)
class StoreHistory:
    """All that a store knows of one topology.

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
    def oldest_attempt_id(self) -> int | None:
        """The oldest committed attempt that is remembered; what was before it is forgotten by and by."""
        return min((batch.attempt_id for batch in self.committed), default=None)

    def fences_of(self, component: str) -> dict[int, int]:
        """Fence → txid, of a component's table."""
        return {**self.fences.get(f"{component}/joining", {}), **self.fences.get(component, {})}


class Store:
    """A store at a URL: `sqlite:///path` or `postgresql://…`. Raises `StoreUnreadable`."""

    def __init__(self, url: str) -> None:
        try:
            self._engine = create_engine(_url(url), hide_parameters=True)
        except (SQLAlchemyError, ModuleNotFoundError) as error:
            raise StoreUnreadable(f"the store can't be opened: {error}") from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def topology_ids(self) -> list[str]:
        """The topologies in the store."""
        return [row[0] for row in self._rows("SELECT topology_id FROM transactional_topologies ORDER BY topology_id")]

    def committed_txid(self, topology_id: str) -> int:
        """How far a topology is. Raises `StoreUnreadable` for one that the store does not know."""
        rows = self._rows("SELECT committed_txid FROM transactional_topologies WHERE topology_id = :id", id=topology_id)
        if not rows:
            known = ", ".join(self.topology_ids()) or "(none)"
            raise StoreUnreadable(f"the store knows no topology {topology_id!r}; it knows {known}")
        return int(rows[0][0])

    def history(self, topology_id: str) -> StoreHistory:
        """Everything about one topology. Raises `StoreUnreadable`."""
        self.committed_txid(topology_id)
        # The tables one by one, the topology's row first: what the others know more of is newer.
        [(committed, attempt, counter, fingerprint)] = self._rows(
            "SELECT committed_txid, committed_attempt_id, attempt_id, fingerprint"
            " FROM transactional_topologies WHERE topology_id = :id",
            id=topology_id,
        )
        in_flight = self._rows(
            "SELECT txid, attempt_id FROM transactional_transactions WHERE topology_id = :id", id=topology_id
        )
        fences: dict[str, dict[int, int]] = {}
        for component, fence, txid in self._rows(
            "SELECT component_id, attempt_id, txid FROM transactional_fences WHERE topology_id = :id", id=topology_id
        ):
            fences.setdefault(component, {})[fence] = txid
        batches, txid_of = self._attempts(topology_id)
        return StoreHistory(
            topology_id, committed, attempt, counter, batches, txid_of, dict(in_flight), fences, json.loads(fingerprint)
        )

    def _attempts(self, topology_id: str) -> tuple[tuple[CommittedBatch, ...], dict[int, int]]:
        query = (
            "SELECT txid, attempt_id, CASE WHEN phase = 'committed' THEN batch END"
            " FROM transactional_attempts WHERE topology_id = :id ORDER BY txid, attempt_id"
        )
        txid_of: dict[int, int] = {}
        batches: list[CommittedBatch] = []
        try:
            with self._engine.connect().execution_options(yield_per=_CHUNK) as connection:
                for part in connection.execute(text(query), {"id": topology_id}).partitions():
                    txid_of.update((row[1], row[0]) for row in part)
                    batches += _batches([row for row in part if row[2] is not None])
        except SQLAlchemyError as error:
            raise StoreUnreadable(f"the store can't be read: {error}") from error
        return tuple(batches), txid_of

    def _rows(self, query: str, **values: Any) -> list[Any]:
        try:
            with self._engine.connect() as connection:
                return list(connection.execute(text(query), values))
        except SQLAlchemyError as error:
            raise StoreUnreadable(f"the store can't be read: {error}") from error


def _batches(rows: list[Any]) -> list[CommittedBatch]:
    try:
        # One call for many documents: a call for each takes three times as long.
        documents = json.loads("[" + ",".join([row[2] for row in rows]) + "]")
        return [_batch(row[0], row[1], document) for row, document in zip(rows, documents, strict=True)]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreUnreadable(
            f"a batch of transactions {rows[0][0]} to {rows[-1][0]} is not readable: {error!r}"
        ) from error


def _batch(txid: int, attempt_id: int, document: Mapping[str, Any]) -> CommittedBatch:
    ranges = {(row[0], row[1]): (row[2], row[3], row[4]) for row in document["partitions"]}
    is_filtered = "excluded" in document or "letters" in document
    return CommittedBatch(txid, attempt_id, ranges, is_filtered)


def _url(url: str) -> Any:
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise StoreUnreadable(f"a store is sqlite:///… or postgresql://…, not {parsed.drivername}://…")
    path = Path(str(parsed.database))
    if not path.is_file():
        raise StoreUnreadable(f"there is no store at {path}")
    # Nothing is written, and nothing made where nothing is.
    return make_url(f"sqlite:///file:{quote(str(path.absolute()))}").update_query_dict({"mode": "ro", "uri": "true"})
