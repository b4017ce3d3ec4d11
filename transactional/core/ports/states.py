"""The port of states: what every table that a topology writes offers the engine, and what else a state may offer.

A committer writes its state in every transaction, in the commit phase. A state keeps previous values beside the current
ones, so that a transaction that is replayed starts from the same values. What else a state can do are its parts
(`state_parts`). Every state passes one contract suite, `check_state` in `transactional/testing/`,
which users run on their own states, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transactional.core.ports.state_parts import StateParts
from transactional.model.absent import Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.schema import Schema
from transactional.model.user_code.overrides import OverridesChecked
from transactional.model.user_code.tuples import Key

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.core.ports.partials import Partials


class State(OverridesChecked, ABC):
    """The table of one committer: key → values, each row with `txid`, `prev_txid` and the previous values.

    These methods are all that a table does in a transaction. What its user has declared is `parts.declared`, and what
    else it can do are its other parts. `state.table_state.TableState` implements most of it.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table.
    If the table's fence is above the caller's attempt id, it writes nothing and raises `Fenced`.
    """

    @property
    @abstractmethod
    def key(self) -> Schema:
        """The key columns, in order."""

    @property
    @abstractmethod
    def values(self) -> Schema:
        """The value columns, in order."""

    @property
    @abstractmethod
    def parts(self) -> StateParts:
        """The declaration of the state's user, the lookup of rows in Arrow, and the further abilities of the state.

        A state with abilities replaces their parts in those of its base class: `replace(super().parts, rewind=self)`.
        """

    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """Return the properties that must stay the same across restarts: location, key, values, kind."""

    @abstractmethod
    def open(self, owner: str, txid_of: Callable[[AttemptId], TxId]) -> None:
        """Create the table, or check the existing one. `owner` is `<topology id>/<component id>`.

        `txid_of` returns the txid of an attempt id (or a fence) of this table. Raises `SchemaMismatch` if a table of
        another shape exists there.
        """

    @abstractmethod
    def version(self) -> AttemptId | None:
        """Load the table, and return the attempt id that was written to it last. None if nothing was written."""

    @abstractmethod
    def fence(self, attempt_id: AttemptId) -> None:
        """Write `attempt_id` as the table's version, through the handle that `version()` loaded, changing no row.

        Raises `TableConflict` if the table has changed since `version()`, and `Fenced` if its version is higher; an
        equal version is this fence's own earlier write, whose outcome was unknown. Raises `StoreMismatch` if another
        writer has changed rows since the owner's last write and the table can detect it: a start would build on them.
        """

    @abstractmethod
    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values before `attempt.txid` of those keys that exist.

        For a row that this transaction has already written, that is the previous value.
        """

    @abstractmethod
    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """Return all keys with their values before `attempt.txid`, in any order."""

    @abstractmethod
    def rows_between(self, attempt: TransactionAttempt, column: str, after: int | None, until: int) -> pa.Table:
        """Return key and value columns of the rows with `after < column <= until`; `after` None: from the beginning.

        `column` is a timestamp column, in microseconds since 1970. The rows are those that a reader of the transaction
        before sees, with those that expire only in this transaction.
        """

    @abstractmethod
    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:
        """Write new values for these keys as transaction `attempt.txid`, even if there are none. `ABSENT` deletes a
        key.

        Other rows that an earlier attempt at this txid changed are rolled back. A transactional state that is already
        at this txid changes no row. Either way the table's version is `attempt.attempt_id` afterwards. Raises `Fenced`,
        or `TableConflict` if another writer got in between; nothing was written then.
        """

    @abstractmethod
    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        """Write as `put` does, but combine partial aggregates with the values from before this transaction."""

    def close(self) -> None:
        """Release the resources that `open` acquired."""
