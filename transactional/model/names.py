"""The project's name, and every name that is stored and later compared: app transactions, properties and notes of
tables, our component ids. They stand in tables and stores that exist: one may be added here, none changed."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "transactional-topologies"
"""What this project is installed as. Another one on the package index uses the name of our package and our command."""

DEAD_LETTERS: Final = "dead-letters"
"""The component that keeps dead letters. No bolt may have this id."""
WINDOWS: Final = "windows"
"""What a committer's entry of a fingerprint has if its table keeps windows that are open: what these are."""
WINDOW_TIME: Final = "window_time"
"""The field with the time by which tuples are in them."""
WINDOW_FIELDS: Final = "window_fields"
"""The fields of the tuples that are kept for them."""
COMBINE: Final = "combine"
"""How the values of a state's update are combined, by column."""
AGGREGATES: Final = "aggregates"
"""Which aggregate of which field each column is."""
KEPT_FIELDS: Final = "kept_fields"
"""The fields of the tuples that a column keeps: by stream those of a join, otherwise by column."""
JOINED_ON: Final = "joined_on"
"""By stream of a join whose tuples are kept, its fields that are compared, and the one with the time."""
EVENT_TIMES: Final = "event_times"
"""The entry of a fingerprint that says which field of a stream is its event time."""

NAIVE_TIMES: Final = "naive_times"
"""The entry of a fingerprint that says which zone times without one are taken for, unless that is UTC."""


def owner_of(topology_id: str, component_id: str) -> str:
    """The owner of a committer's table, and the app transaction of each of its Delta commits."""
    return f"{topology_id}/{component_id}"


def compaction_of(owner: str) -> str:
    """The app transaction of a compaction: its version is the txid up to which the table is compacted."""
    return f"{owner}#compaction"


def repair_of(owner: str) -> str:
    """The app transaction of the doctor's repair: its version is the Delta version whose rows were restored."""
    return f"{owner}#repair"


def horizon_of(owner: str) -> str:
    """Return the app id of a table's expiry horizon. Its version is a time in microseconds since 1970: rows whose
    expiry is at or before it do not exist."""
    return f"{owner}#horizon"


def previous_horizon_of(owner: str) -> str:
    """Return the app id of the expiry horizon of the previous transaction."""
    return f"{owner}#previous-horizon"


def horizon_txid_of(owner: str) -> str:
    """Return the app id whose version is the txid of the transaction that has recorded the expiry horizons."""
    return f"{owner}#horizon-txid"


NO_HORIZON: Final = -(2**63)
"""The version of a horizon's app transaction if no row has expired."""


def joining_of(component_id: str) -> str:
    """The id under which a committer's fences are recorded until its table has one. No component can have such an
    id."""
    return f"{component_id}/joining"


OWNER_PROPERTY: Final = "transactional.owner"
"""The owner of a Delta table, also before its first app transaction."""
STORE_PROPERTY: Final = "transactional.storeId"
"""The coordinator's store that a Delta table was created for."""
COMBINE_PROPERTY: Final = "transactional.combine"
"""How the segments of a table in the log layout are combined."""
LOG_COMMITS_PROPERTY: Final = "transactional.logCommits"
"""How many Delta commits a table's log is to keep."""
SCHEMA_VERSION_PROPERTY: Final = "transactional.schemaVersion"
"""The version of our own layout of a table."""
LAYOUT_VERSION: Final = 3
"""The version of the layout of states, in Delta, SQL and Redis, that is written; no other one is read."""
FEATURES_PROPERTY: Final = "transactional.features"
"""Which of the following a table has, with commas."""
STAGED_FEATURE: Final = "staged"
"""Segments may have several rows per key, in files that tasks have written."""
DELETES_FEATURE: Final = "deletes"
"""The table has a column for tombstones."""
EXPIRES_PROPERTY: Final = "transactional.expires"
"""The column by which the rows of a table expire; a table whose rows stay has no such property."""

OWNER_NOTE: Final = "owner"
"""In a Delta commit's user metadata: the table's owner. Commits with this note are ours."""
REWOUND_NOTE: Final = "rewound_to"
"""In a Delta commit's user metadata: the transaction that a rewind has taken the table back to."""
COMPACTED_FILES_NOTE: Final = "compacted_files"
"""In a Delta commit's user metadata: how many files it replaces with larger ones."""
ADDED_FILES_NOTE: Final = "added_files"
"""In a Delta commit's user metadata, beside `COMPACTED_FILES_NOTE`: how many files it adds."""
DIGEST_TAG: Final = "transactional.blake2b"
"""The tag of a data file in the log of a Delta table that has the digest of its bytes: BLAKE2b of 16 bytes."""
