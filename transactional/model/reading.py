"""The port of states that can be read from outside of the topology that keeps them, in any process."""

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
"""Keys → the rows that have them: key and value columns; maybe more rows."""
Lookups = Mapping[str, Lookup]
"""By committer."""


class StateReader(Protocol):
    """A state's table, opened by somebody who only reads it: it is neither created, nor fenced, nor changed.

    Reads go to what was pinned last, whatever is written meanwhile. For one thread at a time.
    """

    def pin(self, txid: TxId | None = None) -> None:
        """Keep the table as it is now; with `txid` a version in which that transaction's values can still be read.

        Raises `OperatingError`: the table is not there, can't be read, or what it was then is gone.
        """

    @property
    def has_history(self) -> bool:
        """Whether older transactions than the newest two can be read."""

    def rows(self, txid: TxId) -> pa.Table:
        """Key and value columns of all rows as they were after transaction `txid`."""

    def lookup(self, txid: TxId, keys: pa.Table) -> pa.Table:
        """As `rows`, of the rows with these keys; maybe of more. Costs what the keys cost, not what the table does."""

    def release(self) -> None:
        """Let go of what is pinned."""

    def close(self) -> None:
        """Close connections."""


class StaticTable(ABC):
    """A table that others write, and that a topology only looks up. It is sent to executors.

    Each batch reads one version of it, which is recorded with the batch, so that all its attempts find the same rows.
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
        """What it is called where versions are recorded: where it lies, without a secret."""

    @abstractmethod
    def newest(self) -> StaticVersion:
        """The version from which a batch that is planned now reads. Raises `OperatingError`.

        A version is an opaque token, which is passed to `lookup` as it is. It names the table as well, if a table that
        is dropped may be created again with the same numbers.
        """

    @abstractmethod
    def lookup(self, version: StaticVersion, keys: pa.Table) -> pa.Table:
        """Key and value columns of the rows with these keys, maybe of more, in one version that `newest` has returned.

        Raises `OperatingError` if that version can't be read any more, `BatchLost` if it never can be again.
        """
