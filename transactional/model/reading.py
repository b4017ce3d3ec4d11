"""The ports for reading tables: states read from outside their topology, in any process, and tables of others.

`StateReader` opens the table of a state for queries; it must never create, fence or change it. `StaticTable` is a table
that somebody else writes, and that bolts look up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from transactional.model.attempt import TxId
from transactional.model.facts import StaticVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.model.schema import Schema

Lookup = Callable[["pa.Table"], "pa.Table"]
"""A function that returns the rows with given keys: key and value columns, and possibly further rows."""
Lookups = Mapping[str, Lookup]
"""The look-ups of states by the id of their committer."""


class StateReader(Protocol):
    """The table of a state, opened for reading only: it is neither created, nor fenced, nor changed.

    All reads see the version that was pinned last, whatever is written meanwhile. Use it from one thread at a time.
    """

    def pin(self, txid: TxId | None = None) -> None:
        """Pin the current version of the table; with `txid` a version that still has that transaction's values.

        Raises `OperatingError` if the table does not exist, can't be read, or no longer has the values.
        """

    @property
    def has_history(self) -> bool:
        """True if older transactions than the newest two can be read."""

    def rows(self, txid: TxId) -> pa.Table:
        """Return key and value columns of all rows as they were after transaction `txid`."""

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and possibly further rows, at a cost that depends on the keys only."""

    def release(self) -> None:
        """Release the version that was pinned last."""

    def close(self) -> None:
        """Close the connections of the reader."""


class StaticTable(ABC):
    """A table that others write, and in which a topology only looks up rows. It is sent to executors.

    Each batch reads one version of it, which is recorded with the batch, so that all its attempts see the same rows.
    """

    @property
    @abstractmethod
    def key(self) -> Schema:
        """The key columns. A key has one row at most."""

    @property
    @abstractmethod
    def values(self) -> Schema:
        """The columns that are looked up."""

    @property
    @abstractmethod
    def table(self) -> str:
        """The name under which versions are recorded: the table's location, without secrets."""

    @abstractmethod
    def newest(self) -> StaticVersion:
        """Return the version from which a batch that is planned now reads. Raises `OperatingError`.

        A version is an opaque token, which is passed to `lookup` as it is. It names the table as well, if a table that
        is dropped may be created again with the same numbers.
        """

    @abstractmethod
    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys, and possibly further rows, in a version that `newest` has returned.

        They have key and value columns. Raises `OperatingError` if that version can't be read now, `BatchLost` if it
        can never be read again.
        """
