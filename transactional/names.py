"""Every name that is stored and later compared: app transactions, properties and notes of tables, components' own ids.

They stand in tables and stores that exist: a name may be added here, never changed.
"""

from __future__ import annotations

from typing import Final

DEAD_LETTERS: Final = "dead-letters"
"""The component that keeps what was set aside. No bolt may have this id."""


def owner_of(topology_id: str, component_id: str) -> str:
    """Whose a committer's table is, and the app transaction that each of its Delta commits goes by."""
    return f"{topology_id}/{component_id}"


def fold_of(owner: str) -> str:
    """The app transaction of a fold: its version is the txid up to which the table is folded."""
    return f"{owner}#fold"


def repair_of(owner: str) -> str:
    """The app transaction of the doctor's repair: its version is the Delta version whose rows were put back."""
    return f"{owner}#repair"


def joining_of(component_id: str) -> str:
    """The id under which a committer's fences are noted until its table has one. No component can have such an id."""
    return f"{component_id}/joining"


OWNER_PROPERTY: Final = "transactional.owner"
"""Whose a Delta table is, before its first app transaction says it too."""
COMBINE_PROPERTY: Final = "transactional.combine"
"""How the runs of a table in the log layout meet."""
LOG_COMMITS_PROPERTY: Final = "transactional.logCommits"
"""How many Delta commits a table's log is to keep."""
SCHEMA_VERSION_PROPERTY: Final = "transactional.schemaVersion"
"""Which version of our own columns a table has."""

OWNER_NOTE: Final = "owner"
"""In a Delta commit's user metadata: the table's owner. What has it is ours."""
PUT_TOGETHER_NOTE: Final = "files_put_together"
"""In a Delta commit's user metadata: how many files it replaces by larger ones."""
FILES_MADE_NOTE: Final = "files_made"
"""In a Delta commit's user metadata, beside `PUT_TOGETHER_NOTE`: how many files it adds."""
