"""A running `StatefulBolt`, and the key-value state that it reads and writes. Both exist only in the commit phase.

`KeyValues` is shared by all tasks of one bolt in one attempt. The keys of the batch are read at once before the first
tuple; any other key is read when the bolt uses it. New values are kept until the commit phase writes them to the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from transactional.core.ports import Windowed
from transactional.model.absent import ABSENT, Absent
from transactional.model.arrow import arrow_schema
from transactional.model.arrow.zones import key_with_zones, with_zones
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.reading import Lookup
from transactional.model.user_code.failures import TaskFailed, guarding
from transactional.model.user_code.tuples import Key
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.map_state import ReadState
from transactional.runtime.tasks.operators import TupleOperator, late_counts_of
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.bolts.stateful import StatefulBolt


class KeyValues:
    """The `KeyValueState` of all tasks of one bolt in one attempt: the values before the transaction, and new ones.

    Keys and values have the bolt's form: for a single column the value itself, for several a tuple.
    """

    def __init__(self, component: str, state: ReadState, attempt: TransactionAttempt) -> None:
        self._component, self._state, self._attempt = component, state, attempt
        self._values: dict[Any, Any] = {}
        self._changes: dict[Any, Any] = {}
        self._has_one_value = len(state.values) == 1
        self._puts_times = any("timestamp" in field.type for field in state.values)
        self._called_hooks: set[tuple[str, int]] = set()
        self._preread: Mapping[Any, Any] = {}
        self._driver_reason = ""

    @classmethod
    def of(cls, component: str, state: ReadState, attempt: TransactionAttempt) -> KeyValues:
        """Create the `KeyValues` for a state, by the kind of its key."""
        is_plain = len(state.key) == 1 and next(iter(state.key)).type != "timestamp"
        return (cls if is_plain else _NormalizedKeys)(component, state, attempt)

    # --- for the bolt -----------------------------------------------------------------------------------------------

    def get(self, key: object, default: Any = None) -> Any:
        """Return the value of a key, or `default` if it does not exist."""
        try:
            value = self._values[key]
        except KeyError:
            value = self._look_up(key)
        return default if value is ABSENT else value

    def put(self, key: object, value: object) -> None:
        """Set the value of a key."""
        if not self._has_one_value:
            value = self._checked_values(value)
        if self._puts_times:
            value = with_zones(value)
        self._values[key] = self._changes[key] = value

    def delete(self, key: object) -> Any:
        """Delete a key. Returns its value, or None if it does not exist."""
        old_value = self.get(key)
        self._values[key] = self._changes[key] = ABSENT
        return old_value

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return all keys with their values, sorted by key."""
        self._driver_reason = "it reads all keys of its state"
        rows = {self._bolt_key(key): self._bolt_value(values) for key, values in self._state.items(self._attempt)}
        rows.update(self._changes)
        existing = [(key, value) for key, value in rows.items() if value is not ABSENT]
        return iter(sorted(existing, key=_sort_key))

    def __contains__(self, key: object) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    # --- for the commit phase ---------------------------------------------------------------------------------------

    def read_ahead(self, batches: Iterable[pa.RecordBatch], rows_before: Lookup) -> None:
        """Read the keys of these tuples at once, if the tuples have the key's fields with the same types.

        `rows_before` looks up the state's rows before the transaction.
        """
        names = list(self._state.key.names)
        schema = arrow_schema(self._state.key)
        tables = [
            pa.Table.from_batches([batch]).select(names)
            for batch in batches
            if names and set(names) <= set(batch.schema.names)
        ]
        tables = [table for table in tables if table.schema.equals(schema)]
        if tables:
            keys = pa.concat_tables(tables).group_by(names, use_threads=False).aggregate([])
            preread: dict[Any, Any] = dict.fromkeys(self._bolt_keys(keys), ABSENT)
            rows = rows_before(keys)
            values = self._columns(rows, self._state.values.names, is_one=self._has_one_value)
            # There may be rows of further keys.
            preread.update(
                (key, value) for key, value in zip(self._bolt_keys(rows), values, strict=True) if key in preread
            )
            self._values, self._preread = preread | self._values, preread

    @property
    def needs_driver(self) -> str:
        """The reason why the bolt could not have run as a job, which is that it has used keys that its tuples do not
        have. Empty if it could."""
        other_key = next((key for key in self._changes if key not in self._preread), ABSENT)
        return self._driver_reason or ("" if other_key is ABSENT else _reason_of_key(other_key))

    @property
    def changes(self) -> Mapping[Key, tuple[Any, ...] | Absent]:
        """The new values and deletions, in the state's form."""
        if self._has_one_value:
            return {
                self._state_key(key): ABSENT if value is ABSENT else (value,) for key, value in self._changes.items()
            }
        return {self._state_key(key): value for key, value in self._changes.items()}

    def looking_closer(self, check: Callable[[Mapping[Key, tuple[Any, ...] | Absent]], None]) -> KeyValues:
        """Return a copy without changes, for running the tuples again to find the ones at fault. Each value is checked
        when it is put. Hooks that were called are not called again."""
        closer = type(self)(self._component, self._state, self._attempt)
        closer._called_hooks, closer._values, put = self._called_hooks, dict(self._preread), closer.put

        def put_checked(key: Any, value: Any) -> None:
            put(key, value)
            check({closer._state_key(key): (value,) if closer._has_one_value else tuple(value)})

        closer.put = put_checked  # type: ignore[method-assign]
        return closer

    def close(self) -> None:
        """Refuse further changes, because the state is written."""
        self.put = self._refuse  # type: ignore[method-assign]
        self.delete = self._refuse  # type: ignore[method-assign]

    def is_first(self, hook: str, task: int) -> bool:
        """Return whether a hook of a task is called for the first time in this attempt. A task may be run again to find
        the tuples at fault."""
        is_first = (hook, task) not in self._called_hooks
        self._called_hooks.add((hook, task))
        return is_first

    # --- details ----------------------------------------------------------------------------------------------------

    def _bolt_keys(self, rows: pa.Table) -> list[Any]:
        """Return the keys of rows in the bolt's form."""
        return self._columns(rows, self._state.key.names, is_one=True)

    @staticmethod
    def _columns(rows: pa.Table, names: Sequence[str], *, is_one: bool) -> list[Any]:
        """Return the values of one column, or tuples of the values of several columns."""
        columns = [rows.column(name).to_pylist() for name in names]
        return columns[0] if is_one else list(zip(*columns, strict=True))

    def _look_up(self, key: Any) -> Any:
        self._driver_reason = self._driver_reason or _reason_of_key(key)
        self._read([self._state_key(key)])
        return self._values[key]

    def _read(self, keys: Sequence[Key]) -> None:
        rows = self._state.get(self._attempt, keys)
        for key in keys:
            value = self._bolt_value(rows[key]) if key in rows else ABSENT
            self._values.setdefault(self._bolt_key(key), value)

    def _state_key(self, key: Any) -> Key:
        """Return a key in the state's form."""
        return (key,)

    def _bolt_key(self, key: Key) -> Any:
        """Return a key in the bolt's form."""
        return key[0]

    def _bolt_value(self, values: tuple[Any, ...]) -> Any:
        return values[0] if self._has_one_value else values

    def _checked_values(self, value: Any) -> tuple[Any, ...]:
        names = self._state.values.names
        if not isinstance(value, tuple | list) or len(value) != len(names):
            raise SchemaMismatch(
                f"stateful bolt {self._component!r} put {value!r}; its state has the values {', '.join(names)}"
            )
        return tuple(value)

    def _refuse(self, key: Any, value: Any = ABSENT) -> NoReturn:
        raise ConfigError(
            f"stateful bolt {self._component!r} changed {key!r} in pre_commit, when its state was written already: do "
            "so in execute or pre_prepare"
        )


class _NormalizedKeys(KeyValues):
    """`KeyValues` for keys with no or several columns, or with timestamps: a key is a tuple of values, in UTC."""

    def get(self, key: object, default: Any = None) -> Any:
        return super().get(self._state_key(key), default)

    def put(self, key: object, value: object) -> None:
        super().put(self._state_key(key), value)

    def delete(self, key: object) -> Any:
        return super().delete(self._state_key(key))

    def _state_key(self, key: Any) -> Key:
        values = tuple(key) if isinstance(key, tuple) else (key,)  # a `Tuple` is not equal to one of another stream
        names = self._state.key.names
        if len(values) != len(names):
            raise SchemaMismatch(
                f"stateful bolt {self._component!r} used the key {key!r}; the key of its state is ({', '.join(names)})"
            )
        return key_with_zones(values, names, component=self._component)

    def _bolt_key(self, key: Key) -> Any:
        return key

    def _bolt_keys(self, rows: pa.Table) -> list[Any]:
        return self._columns(rows, self._state.key.names, is_one=False)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Return all keys in the bolt's form, with their values."""
        is_one = len(self._state.key) == 1
        return ((key[0] if is_one else key, value) for key, value in super().items())


def _reason_of_key(key: Any) -> str:
    return f"it uses keys of its state that its tuples do not have, as {key!r}"


def _sort_key(entry: tuple[Any, Any]) -> Any:
    """Return the sort key of an entry of `items`: NULLs come last."""
    key = entry[0] if isinstance(entry[0], tuple) else (entry[0],)
    return tuple((column is None, column) for column in key)


class StatefulOperator(TupleOperator):
    """A `StatefulBolt` in one task. With `replaces` an earlier attempt at this transaction has written the state."""

    def __init__(
        self,
        component: str,
        emitter: Emitter,
        bolt: StatefulBolt,
        context: TopologyContext,
        attempt: TransactionAttempt,
        state: KeyValues,
        *,
        replaces: bool,
    ) -> None:
        super().__init__(component, emitter)
        self.bolt, self.context, self.attempt, self.state, self.replaces = bolt, context, attempt, state, replaces

    def prepare(self) -> None:
        """Prepare the bolt, and give it its state."""
        task = self.context.task_index
        with guarding(self.component):
            self.bolt.prepare(self.context, self.emitter)
            if self.replaces and self.state.is_first("pre_rollback", task):
                self.bolt.pre_rollback(self.attempt.txid)
            self.bolt.init_state(self.state)

    def work(self) -> Any:
        """Return the function that passes the bolt a tuple."""
        return self.bolt.execute

    def finish(self) -> None:
        """Call `pre_prepare`: all tuples are processed, and the state is written next."""
        if self.state.is_first("pre_prepare", self.context.task_index):
            try:
                with guarding(self.component):
                    self.bolt.pre_prepare(self.attempt.txid)
            except TaskFailed as failed:
                if isinstance(self.bolt, Windowed) and self.bolt.processed_window:
                    failed.location = f", on {self.bolt.processed_window}"
                raise

    @property
    def late_counts(self) -> Mapping[str, int]:
        """The late tuples that the bolt has counted."""
        return late_counts_of(self.bolt)

    def pre_commit(self) -> None:
        """Call the bolt's `pre_commit`: all states are written, and the transaction commit is next."""
        self.emitter.end()
        with guarding(self.component):
            self.bolt.pre_commit(self.attempt.txid)


def overrides_rollback(bolt: StatefulBolt) -> bool:
    """Return whether the bolt has a hook for replaced transactions. Finding out whether one is replaced costs a
    read."""
    return type(bolt).pre_rollback is not StatefulBolt.pre_rollback
