"""Whose a state's Delta table is: `<topology>/<component>`, in the table's properties from its creation on.

App transactions tell it only once something was written: until then two topologies would both take a table for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from deltalake import Transaction

from state.base import WriteRefused
from state.delta.judged import once
from transactional.errors import OperatingError, StoreMismatch
from transactional.names import OWNER_PROPERTY

if TYPE_CHECKING:
    from state.delta.delta_rs import DeltaHandle

CLAIM_TRIES = 10


def with_owner(properties: Mapping[str, str], owner: str) -> dict[str, str]:
    """The properties of a table that is created for an owner."""
    return {**properties, OWNER_PROPERTY: owner}


def claim(handle: DeltaHandle) -> None:
    """See that a table is its opener's. One of an earlier release, which does not say, is taken when it was written by
    the opener, or is empty.

    Raises `StoreMismatch` for another's, `OperatingError` when the table can't be read or written.
    """
    for _ in range(CLAIM_TRIES):
        stored = handle.snapshot.metadata().configuration.get(OWNER_PROPERTY)
        if stored == handle.owner:
            return
        if stored is not None:
            raise StoreMismatch(_anothers(handle, stored))
        _check_rows(handle)
        try:
            _write(handle)
        except WriteRefused as error:
            if not error.is_conflict:
                raise OperatingError(f"Delta table {handle.location}: {error}") from None
            handle.judge()  # of two that claim it at once, one is refused here, and looks again
    raise OperatingError(
        f"Delta table {handle.location} is written so often that {handle.owner} can't be noted as its owner; see what "
        "else writes it, and start again"
    )


def _check_rows(handle: DeltaHandle) -> None:
    if handle.version() is None and (newest := handle.newest_txid()):
        raise StoreMismatch(
            f"Delta table {handle.location} has rows of transaction {newest}, none written by {handle.owner}: it is "
            "another topology's table; give each topology its own, or start with an empty one"
        )


def _anothers(handle: DeltaHandle, stored: str) -> str:
    is_empty = not handle.newest_txid()
    renamed = "it can be deleted, since it has no rows" if is_empty else "keep the old name, or start with a new table"
    return (
        f"Delta table {handle.location} is the table of {stored}, and {handle.owner} has opened it; give each "
        f"committer of each topology a table of its own. If {stored} was renamed: {renamed}"
    )


def _write(handle: DeltaHandle) -> None:
    """Write the property over the snapshot that was judged, or not at all."""
    version = handle.version()
    transactions = [] if version is None else [Transaction(handle.owner, version)]
    with handle.writing() as table:
        table.alter.set_table_properties(
            {OWNER_PROPERTY: handle.owner}, raise_if_not_exists=False, commit_properties=once(transactions)
        )
