"""The steps that take the coordinator's store from one schema version to the next, on SQLite and PostgreSQL alike.

A coordinator of the previous version that is still running continues meanwhile: it names the columns that it writes,
and new ones have defaults.
"""

from __future__ import annotations

from typing import Final

_RUNS: Final = """
CREATE TABLE transactional_runs (
    topology_id TEXT NOT NULL, epoch BIGINT NOT NULL, owner TEXT NOT NULL, name TEXT, version TEXT NOT NULL,
    described TEXT NOT NULL, settings TEXT NOT NULL, began_at_ms BIGINT NOT NULL, began_at_txid BIGINT NOT NULL,
    ended_at_ms BIGINT, ended_at_txid BIGINT, ended_how TEXT, ended_code TEXT, ended_reason TEXT,
    PRIMARY KEY (topology_id, epoch)
)"""
_MINUTES: Final = """
CREATE TABLE transactional_minutes (
    topology_id TEXT NOT NULL, at_ms BIGINT NOT NULL, epoch BIGINT NOT NULL, transactions BIGINT NOT NULL,
    rows BIGINT NOT NULL, failures BIGINT NOT NULL, latencies TEXT NOT NULL, lag_sum BIGINT NOT NULL,
    lag_max BIGINT NOT NULL, phases_ms TEXT NOT NULL,
    PRIMARY KEY (topology_id, at_ms, epoch)
)"""
_SAVEPOINTS: Final = """
CREATE TABLE transactional_savepoints (
    topology_id TEXT NOT NULL, name TEXT NOT NULL, txid BIGINT NOT NULL, noted_at_ms BIGINT NOT NULL,
    PRIMARY KEY (topology_id, name)
)"""

MIGRATIONS: Final = {
    1: (
        "ALTER TABLE transactional_topologies ADD COLUMN name TEXT",
        "ALTER TABLE transactional_topologies ADD COLUMN desired TEXT DEFAULT 'active' NOT NULL",
        "ALTER TABLE transactional_topologies ADD COLUMN stop_at_ms BIGINT",
    ),
    2: (
        "ALTER TABLE transactional_topologies ADD COLUMN failing_since_ms BIGINT",
        "ALTER TABLE transactional_topologies ADD COLUMN failing_txid BIGINT",
        "ALTER TABLE transactional_topologies ADD COLUMN failing_error TEXT",
        "ALTER TABLE transactional_topologies ADD COLUMN rewinding_to BIGINT",
        "ALTER TABLE transactional_attempts ADD COLUMN details TEXT",
        _RUNS,
        _MINUTES,
        _SAVEPOINTS,
    ),
    3: (
        "CREATE INDEX transactional_attempts_by_txid ON transactional_attempts (topology_id, txid)",
        "ALTER TABLE transactional_runs ADD COLUMN sources TEXT DEFAULT '{}' NOT NULL",
    ),
    4: (
        "ALTER TABLE transactional_minutes ADD COLUMN planning_ms BIGINT",
        "ALTER TABLE transactional_minutes ADD COLUMN processing_ms BIGINT",
        "ALTER TABLE transactional_minutes ADD COLUMN waiting_ms BIGINT",
        "ALTER TABLE transactional_minutes ADD COLUMN committing_ms BIGINT",
    ),
    5: ("ALTER TABLE transactional_topologies ADD COLUMN store_id TEXT",),
}
"""The statements by the version that they start from."""
