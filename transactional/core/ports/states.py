"""The port of states: what every table that a topology writes offers the engine, and what else a state may offer.

A committer writes its state in every transaction, in the commit phase. A state keeps previous values beside the current
ones, so that a transaction that is replayed starts from the same values. What else a state can do are its parts
(`state_parts`). Every state passes one contract suite, `check_state` in `transactional/testing/`,
which users run on their own states, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from transactional.core.ports.expiry import Expiry
from transactional.core.ports.state_parts import StateParts
from transactional.model.absent import Absent
from transactional.model.attempt import AttemptId, TransactionAttempt, TxId
from transactional.model.errors import ConfigError
from transactional.model.facts import BatchFacts
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Key

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.core.ports.partials import Partials


class StateKind(Enum):
    """How a state protects itself against a replay. `value` is the word used in messages."""

    NON_TRANSACTIONAL = "non-transactional"
    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"


class State(ABC):
    """The table of one committer: key → values, each row with `txid`, `prev_txid` and the previous values.

    The abstract methods are those that every state has. The other methods are abilities, whose defaults are those of a
    state without them. `state.table_state.TableState` implements most of it, and the aggregates that update a state.

    Only used from the driver's commit thread. Every writing method checks and writes through one handle of the table.
    If the table's fence is above the caller's attempt id, it writes nothing and raises `Fenced`.
    """

    @property
    @abstractmethod
    def kind(self) -> StateKind:
        """The kind of the state: transactional or opaque."""

    @property
    @abstractmethod
    def key(self) -> Schema:
        """The key columns, in order."""

    @property
    @abstractmethod
    def values(self) -> Schema:
        """The value columns, in order."""

    @property
    def parts(self) -> StateParts:
        """The further abilities of the state, by default none.

        A state with abilities replaces their parts in those of its base class: `replace(super().parts, rewind=self)`.
        """
        return StateParts()

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
    def is_replay(self, attempt: TransactionAttempt) -> bool:
        """Return whether an earlier attempt at this transaction has written the table. Raises `Fenced`."""

    @abstractmethod
    def rows_before(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return the rows that `get` returns, in Arrow: key and value columns. There may be further rows."""

    @abstractmethod
    def rows_after(self, attempt: TransactionAttempt, keys: pa.Table) -> pa.Table:
        """Return the rows with these keys as they are once this attempt has written, like `rows_before`."""

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

    def close(self) -> None:  # noqa: B027 - optional
        """Release the resources that `open` acquired."""

    # --- columns, before it is opened -----------------------------------------------------------------------------

    @property
    def table(self) -> str:
        """The name of the table in messages."""
        return type(self).__name__

    def bind(self, key: Schema, values: Schema) -> None:
        """Set the columns, once the schema of the input is known.

        Raises `ConfigError` if other columns are declared. By default all columns are declared.
        """
        if (self.key, self.values) != (key, values):
            raise ConfigError(
                f"state {self.table} has the columns '{self.key} -> {self.values}'; what updates it needs "
                f"'{key} -> {values}'"
            )

    def allow_deletes(self) -> None:
        """Allow that keys are deleted. Raises `ConfigError` if they can't be, which is the default."""
        raise ConfigError(f"a {type(self).__name__} can't delete rows")

    def set_expiry(self, expiry: Expiry) -> None:
        """Let rows expire by this rule. Raises `ConfigError` if rows can't expire, which is the default."""
        raise ConfigError(f"rows of a {type(self).__name__} can't expire")

    def aggregate(self, aggregates: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        """Return the update that stores these aggregates, each in its column.

        Raises `ConfigError` if the state has no aggregates, which is the default: bolts use `put`.
        """
        raise ConfigError(f"a {type(self).__name__} has no aggregates; derive it from state.table_state.TableState")

    # --- transactions ---------------------------------------------------------------------------------------------

    def begin(self, attempt: TransactionAttempt, facts: BatchFacts | None) -> None:  # noqa: B027 - optional
        """Called before anything is read or written for an attempt, with the facts of its batch.

        Where rows expire, each transaction has an expiry horizon: rows whose expiry is at or before this time do not
        exist for it. The horizon follows from these facts, is recorded in the same write as the rows, and never goes
        back from one transaction to the next. Here no row expires.
        """

    def check_put(self, rows: Mapping[Key, tuple[Any, ...] | Absent]) -> None:  # noqa: B027 - optional
        """Raise the error that `put` would raise for these rows, without writing.

        The tuples that led to refused values can then be identified. By default nothing is checked.
        """
