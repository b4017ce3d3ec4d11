"""A running `StatefulBolt`, and the state that it reads and writes: both only exist in the commit phase."""

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
from transactional.model.user_code.failures import TaskFailed, guarded
from transactional.model.user_code.tuples import Key
from transactional.runtime.tasks.emitting import Emitter
from transactional.runtime.tasks.map_state import ReadState
from transactional.runtime.tasks.operators import TupleOperator, late_counts_of
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.bolts.stateful import StatefulBolt


class KeyValues:
    """The `KeyValueState` of all tasks of one bolt in one attempt: what was before the transaction, and what was put.

    Keys and values are kept as the bolt gives them: the value itself for a single column.
    """

    def __init__(self, component: str, state: ReadState, attempt: TransactionAttempt) -> None:
        self._component, self._state, self._attempt = component, state, attempt
        self._known: dict[Any, Any] = {}
        self._written: dict[Any, Any] = {}
        self._has_one_value = len(state.values) == 1
        self._puts_times = any("timestamp" in field.type for field in state.values)
        self._done: set[tuple[str, int]] = set()
        self._ahead: Mapping[Any, Any] = {}
        self._reaches = ""

    @classmethod
    def of(cls, component: str, state: ReadState, attempt: TransactionAttempt) -> KeyValues:
        """The one for a state's kind of key."""
        is_plain = len(state.key) == 1 and next(iter(state.key)).type != "timestamp"
        return (cls if is_plain else _NormalizedKeys)(component, state, attempt)

    # --- for the bolt -----------------------------------------------------------------------------------------------

    def get(self, key: object, default: Any = None) -> Any:
        """The value of a key, `default` if it does not exist."""
        try:
            found = self._known[key]
        except KeyError:
            found = self._look_up(key)
        return default if found is ABSENT else found

    def put(self, key: object, value: object) -> None:
        """Set the value of a key."""
        if not self._has_one_value:
            value = self._checked_values(value)
        if self._puts_times:
            value = with_zones(value)
        self._known[key] = self._written[key] = value

    def delete(self, key: object) -> Any:
        """Delete a key, and return its value; None if it does not exist."""
        old = self.get(key)
        self._known[key] = self._written[key] = ABSENT
        return old

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys with their values."""
        self._reaches = "it reads all keys of its state"
        found = {self._given(key): self._value(values) for key, values in self._state.items(self._attempt)}
        found.update(self._written)
        there = [(key, value) for key, value in found.items() if value is not ABSENT]
        return iter(sorted(there, key=_order))

    def __contains__(self, key: object) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    # --- for the commit phase ---------------------------------------------------------------------------------------

    def read_ahead(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Read the keys of these tuples at once, if their fields are those of the key."""
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
            known: dict[Any, Any] = dict.fromkeys(self._all_given(keys), ABSENT)
            found = self._state.rows_before(self._attempt, keys)
            values = self._columns(found, self._state.values.names, is_one=self._has_one_value)
            # There may be rows of more keys.
            known.update(
                (key, value) for key, value in zip(self._all_given(found), values, strict=True) if key in known
            )
            self._known, self._ahead = known | self._known, known

    @property
    def needs_driver(self) -> str:
        """Why the bolt could not have run as a job: it has used more than the keys of its tuples. Empty: it could."""
        beyond = next((key for key in self._written if key not in self._ahead), ABSENT)
        return self._reaches or ("" if beyond is ABSENT else _beyond(beyond))

    @property
    def written(self) -> Mapping[Key, tuple[Any, ...] | Absent]:
        """What was put and deleted, as the state takes it."""
        if self._has_one_value:
            return {self._as_key(k): ABSENT if value is ABSENT else (value,) for k, value in self._written.items()}
        return {self._as_key(key): value for key, value in self._written.items()}

    def looking_closer(self, check: Callable[[Mapping[Key, tuple[Any, ...] | Absent]], None]) -> KeyValues:
        """The same, before anything was put: for a second look at the tuples, in which each value is checked when it is
        put. Hooks that were called are not called again."""
        closer = type(self)(self._component, self._state, self._attempt)
        closer._done, closer._known, put = self._done, dict(self._ahead), closer.put

        def checked(key: Any, value: Any) -> None:
            put(key, value)
            check({closer._as_key(key): (value,) if closer._has_one_value else tuple(value)})

        closer.put = checked  # type: ignore[method-assign]
        return closer

    def close(self) -> None:
        """The state is written: refuse to put any more."""
        self.put = self._refuse  # type: ignore[method-assign]
        self.delete = self._refuse  # type: ignore[method-assign]

    def is_first(self, hook: str, task: int) -> bool:
        """False if a hook of a task was called in this attempt before: a task may be run again to find out more."""
        is_first = (hook, task) not in self._done
        self._done.add((hook, task))
        return is_first

    # --- details ----------------------------------------------------------------------------------------------------

    def _all_given(self, rows: pa.Table) -> list[Any]:
        """The keys of rows, as the bolt gives them."""
        return self._columns(rows, self._state.key.names, is_one=True)

    @staticmethod
    def _columns(rows: pa.Table, names: Sequence[str], *, is_one: bool) -> list[Any]:
        """The values of a column, or of several as tuples."""
        columns = [rows.column(name).to_pylist() for name in names]
        return columns[0] if is_one else list(zip(*columns, strict=True))

    def _look_up(self, key: Any) -> Any:
        self._reaches = self._reaches or _beyond(key)
        self._read([self._as_key(key)])
        return self._known[key]

    def _read(self, keys: Sequence[Key]) -> None:
        found = self._state.get(self._attempt, keys)
        for key in keys:
            value = self._value(found[key]) if key in found else ABSENT
            self._known.setdefault(self._given(key), value)

    def _as_key(self, key: Any) -> Key:
        """A key as the state takes it."""
        return (key,)

    def _given(self, key: Key) -> Any:
        """A key as the bolt gives it."""
        return key[0]

    def _value(self, values: tuple[Any, ...]) -> Any:
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
    """For keys of no or several columns, and of timestamps: a key is a tuple of its columns' values, in UTC."""

    def get(self, key: object, default: Any = None) -> Any:
        return super().get(self._as_key(key), default)

    def put(self, key: object, value: object) -> None:
        super().put(self._as_key(key), value)

    def delete(self, key: object) -> Any:
        return super().delete(self._as_key(key))

    def _as_key(self, key: Any) -> Key:
        values = tuple(key) if isinstance(key, tuple) else (key,)  # a `Tuple` is not equal to one of another stream
        names = self._state.key.names
        if len(values) != len(names):
            raise SchemaMismatch(
                f"stateful bolt {self._component!r} used the key {key!r}; the key of its state is ({', '.join(names)})"
            )
        return key_with_zones(values, names, component=self._component)

    def _given(self, key: Key) -> Any:
        return key

    def _all_given(self, rows: pa.Table) -> list[Any]:
        return self._columns(rows, self._state.key.names, is_one=False)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """As the bolt gives them."""
        is_one = len(self._state.key) == 1
        return ((key[0] if is_one else key, value) for key, value in super().items())


def _beyond(key: Any) -> str:
    return f"it uses keys of its state that its tuples do not have, as {key!r}"


def _order(item: tuple[Any, Any]) -> Any:
    """NULLs come last."""
    key = item[0] if isinstance(item[0], tuple) else (item[0],)
    return tuple((value is None, value) for value in key)


class StatefulOperator(TupleOperator):
    """A `StatefulBolt` in one task. `replaces`: an earlier attempt at this transaction has written the state."""

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
        with guarded(self.component):
            self.bolt.prepare(self.context, self.emitter)
            if self.replaces and self.state.is_first("pre_rollback", task):
                self.bolt.pre_rollback(self.attempt.txid)
            self.bolt.init_state(self.state)

    def work(self) -> Any:
        """Passes the bolt a tuple."""
        return self.bolt.execute

    def finish(self) -> None:
        """All tuples are processed: the state is written next."""
        if self.state.is_first("pre_prepare", self.context.task_index):
            try:
                with guarded(self.component):
                    self.bolt.pre_prepare(self.attempt.txid)
            except TaskFailed as failed:
                if isinstance(self.bolt, Windowed) and self.bolt.processed_window:
                    failed.where = f", on {self.bolt.processed_window}"
                raise

    @property
    def late_counts(self) -> Mapping[str, int]:
        """What the bolt has counted."""
        return late_counts_of(self.bolt)

    def pre_commit(self) -> None:
        """All states are written: the transaction commit is next. Nothing can be emitted or put any more."""
        self.emitter.end()
        with guarded(self.component):
            self.bolt.pre_commit(self.attempt.txid)


def overrides_rollback(bolt: StatefulBolt) -> bool:
    """Whether the bolt has to be notified of what it replaces: to find out costs a read."""
    return type(bolt).pre_rollback is not StatefulBolt.pre_rollback
