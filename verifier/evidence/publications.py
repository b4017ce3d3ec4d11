"""The part of the coordinator's store that is about sinks: what each transaction had for them, and what still waits.

It is read with plain SQL, as of one moment. Counts and checksums are kept as long as the attempts that committed them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, text

from verifier.evidence.findings import CheckImpossible

COMMITTED, REWOUND = "committed", "rewound"
_BOUNDARY_RUN = ""
_POSITION = "SELECT committed_txid, store_id FROM transactional_topologies WHERE topology_id = :id"
_ATTEMPTS = """SELECT txid, attempt_id, phase, CASE WHEN phase = 'committed' THEN details END
    FROM transactional_attempts WHERE topology_id = :id"""
_WAITING = "SELECT sink, attempt_id FROM transactional_outbox WHERE topology_id = :id"
_LETTERS = "SELECT sink, attempt_id, records FROM transactional_sink_letters WHERE topology_id = :id"
_BOUNDARIES = "SELECT sink, attempt_id FROM transactional_sinks WHERE topology_id = :id AND run = :run"


@dataclass(frozen=True, slots=True)
class StoredRecords:
    """The number of records of one transaction for one sink, and the sum of their checksums.

    The checksum is None if the sink makes none, or the transaction is older than checksums.
    """

    count: int
    checksum: int | None = None


@dataclass(frozen=True, slots=True)
class Publications:
    """The records of sinks as the store has them.

    `store_id` is None from a repair to the next run.
    `attempts` has the txid and the phase of every attempt that the store still has; `records` those of committed
    attempts, by sink and attempt; `waiting` the attempts that are still in the outbox; `letters` the number of records
    that an operator has set aside, by attempt. `boundaries` are attempts up to which a target counts for nothing.
    `restored` are committed attempts that a repair has taken from a journal, which does not know their records.
    """

    committed_txid: int
    store_id: str | None
    attempts: Mapping[int, tuple[int, str]]
    records: Mapping[str, Mapping[int, StoredRecords]]
    waiting: Mapping[str, frozenset[int]]
    letters: Mapping[str, Mapping[int, int]]
    boundaries: Mapping[str, int]
    restored: frozenset[int] = frozenset()


def read_publications(connection: Connection, topology_id: str) -> Publications:
    """Return the records of sinks of a topology. Raises `CheckImpossible` for details that can't be read."""
    key = {"id": topology_id}
    attempts: dict[int, tuple[int, str]] = {}
    restored = set[int]()
    records: dict[str, dict[int, StoredRecords]] = defaultdict(dict)
    [(committed_txid, store_id)] = connection.execute(text(_POSITION), key)
    for txid, attempt_id, phase, details in connection.execute(text(_ATTEMPTS), key):
        attempts[attempt_id] = (txid, phase)
        if phase == COMMITTED and details is None:
            restored.add(attempt_id)
        for sink, stored in _parse_details(txid, details).items():
            records[sink][attempt_id] = stored
    waiting: dict[str, set[int]] = defaultdict(set)
    letters: dict[str, Counter[int]] = defaultdict(Counter)
    for sink, attempt_id in _read(connection, "transactional_outbox", _WAITING, key):
        waiting[sink].add(attempt_id)
    for sink, attempt_id, count in _read(connection, "transactional_sink_letters", _LETTERS, key):
        letters[sink][attempt_id] += count
    boundaries = _read(connection, "transactional_sinks", _BOUNDARIES, {**key, "run": _BOUNDARY_RUN})
    frozen = {sink: frozenset(attempt_ids) for sink, attempt_ids in waiting.items()}
    return Publications(
        *(committed_txid, store_id, attempts, records, frozen, letters),
        boundaries={row[0]: row[1] for row in boundaries},
        restored=frozenset(restored),
    )


def _read(connection: Connection, table: str, query: str, values: Mapping[str, object]) -> list[Any]:
    """Return the rows of a table that a store made before there were sinks may lack."""
    return list(connection.execute(text(query), values)) if inspect(connection).has_table(table) else []


def _parse_details(txid: int, details: str | None) -> dict[str, StoredRecords]:
    if details is None or '"sinks"' not in details:
        return {}
    try:
        return {
            sink: StoredRecords(int(stored["count"]), stored.get("checksum"))
            for sink, stored in json.loads(details).get("sinks", {}).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckImpossible(f"the details of transaction {txid} are not readable: {error!r}") from error
