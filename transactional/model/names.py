"""The project's name, and all names that are stored and compared later: app transactions, table properties, notes.

They are in the tables and stores of users. A name may be added here, but none may be changed.
"""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "transactional-topologies"
"""The name under which this project is installed. Another project on the package index has the name of our package."""

DEAD_LETTERS: Final = "dead-letters"
"""The component that keeps dead letters. No bolt may have this id."""
WINDOWS: Final = "windows"
"""The key in a committer's fingerprint for its windows, if its table keeps open windows."""
WINDOW_TIME: Final = "window_time"
"""The key in a committer's fingerprint for the field by whose time tuples are assigned to windows."""
WINDOW_FIELDS: Final = "window_fields"
"""The key in a committer's fingerprint for the fields of the tuples that open windows keep."""
COMBINE: Final = "combine"
"""The key in a committer's fingerprint for the combination of values, by column."""
AGGREGATES: Final = "aggregates"
"""The key in a committer's fingerprint for the aggregate and the field of each column."""
KEPT_FIELDS: Final = "kept_fields"
"""The key in a committer's fingerprint for the fields of kept tuples: by stream for a join, otherwise by column."""
JOINED_ON: Final = "joined_on"
"""The key in a committer's fingerprint for a join that keeps tuples: by stream, the compared fields and the time."""
EVENT_TIMES: Final = "event_times"
"""The key in a fingerprint for the field of a stream that is its event time."""

NAIVE_TIMES: Final = "naive_times"
"""The key in a fingerprint for the zone that is assumed for times without one, unless it is UTC."""


def owner_of(topology_id: str, component_id: str) -> str:
    """Return the owner of a committer's table, which is also the app id of its Delta commits."""
    return f"{topology_id}/{component_id}"


def compaction_of(owner: str) -> str:
    """Return the app id of compactions, whose version is the txid up to which the table is compacted."""
    return f"{owner}#compaction"


def repair_of(owner: str) -> str:
    """Return the app id of the doctor's repairs, whose version is the Delta version whose rows were restored."""
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
    """Return the id under which a committer's fences are recorded until its table has one. No component has such an
    id."""
    return f"{component_id}/joining"


SINKS: Final = "sinks"
"""The entry of a fingerprint with the sinks, by name."""
SINK_TABLE: Final = "table_id"
"""The entry of a sink's fingerprint with the id of its table, if the sink appends to one that exists."""

SINK_TOPICS: Final = "topics"
"""The entry of a sink in a fingerprint with the topics that its records may name. It may gain topics."""

SINK_PROPERTY: Final = "transactional.sink"
"""The publisher of a table that a sink appends to, as JSON: `topology`, `sink`, `store`; and the `run` whose store has
committed its newest publication."""
SINK_ATTEMPT: Final = "transactional.sink/attempt"
"""The app id whose version is the attempt of the newest publication in a sink's table."""
SINK_TXID: Final = "transactional.sink/txid"
"""The app id whose version is the transaction of the newest publication in a sink's table."""
SINK_FENCE: Final = "transactional.sink/fence"
"""The app id whose version is the fence id of the leader that publishes into a sink's table."""

OWNER_PROPERTY: Final = "transactional.owner"
"""The owner of a Delta table, also before its first app transaction."""
STORE_PROPERTY: Final = "transactional.storeId"
"""The id of the coordinator's store that a Delta table was created for."""
COMBINE_PROPERTY: Final = "transactional.combine"
"""The combination of values, by column, for the segments of a table in the log layout."""
LOG_COMMITS_PROPERTY: Final = "transactional.logCommits"
"""The number of Delta commits that a table's log keeps."""
SCHEMA_VERSION_PROPERTY: Final = "transactional.schemaVersion"
"""The version of our own layout of a table."""
LAYOUT_VERSION: Final = 3
"""The version of the layout of states, in Delta, SQL and Redis, that is written; no other one is read."""
FEATURES_PROPERTY: Final = "transactional.features"
"""The features of a table, out of the following, separated by commas."""
STAGED_FEATURE: Final = "staged"
"""Segments may have several rows per key, in files that tasks have written."""
DELETES_FEATURE: Final = "deletes"
"""The table has a column for tombstones."""
EXPIRES_PROPERTY: Final = "transactional.expires"
"""The column by which the rows of a table expire; a table whose rows stay has no such property."""

OWNER_NOTE: Final = "owner"
"""The key in a Delta commit's user metadata for the table's owner. Only our own commits have it."""
REWOUND_NOTE: Final = "rewound_to"
"""The key in a Delta commit's user metadata for the transaction that a rewind has returned the table to."""
COMPACTED_FILES_NOTE: Final = "compacted_files"
"""The key in a Delta commit's user metadata for the number of files that a compaction replaces."""
ADDED_FILES_NOTE: Final = "added_files"
"""The key in a Delta commit's user metadata for the number of files that a compaction adds."""
DIGEST_TAG: Final = "transactional.blake2b"
"""The tag of a data file in the log of a Delta table that has the digest of its bytes: BLAKE2b of 16 bytes."""
