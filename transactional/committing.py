"""The commit phase of one transaction: every committer finishes its batch, one after the other, in the driver."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from transactional.attempt import TransactionAttempt
from transactional.bolts import BatchBolt, Key
from transactional.errors import BoltFailed, SchemaMismatch, TransactionalError
from transactional.pickling import load_committer
from transactional.ports import Partials, Processed, TransactionState
from transactional.topology import Component, Topology


def commit_transaction(topology: Topology, attempt: TransactionAttempt, processed: Processed) -> None:
    """Run the commit phase of one attempt.

    Every committer writes to its table, also when it has nothing to change: so every table's version says at which
    transaction it is. Raises `Fenced`, an `OperatingError`, or what a bolt has raised as `BoltFailed`.
    """
    for component in topology.committers:
        assert component.state is not None
        part = processed.parts[component.id]
        if isinstance(part, Partials):
            component.state.merge(attempt, part)
        else:
            _finish_bolts(component, component.state, attempt, part)


def _finish_bolts(
    component: Component, state: TransactionState, attempt: TransactionAttempt, instances: Sequence[bytes]
) -> None:
    view = MapStateView(component.id, state, attempt)
    collector = DiscardingCollector()
    try:
        for pickled in instances:
            bolt: BatchBolt = load_committer(pickled, collector, view)
            bolt.finish_batch()
    except TransactionalError:
        raise
    except Exception as error:
        text = "".join(traceback.format_exception(error)).rstrip()
        raise BoltFailed(f"committer {component.id!r} raised {type(error).__name__}: {error}\n{text}") from error
    state.put(attempt, view.written)


class DiscardingCollector:
    """Takes what a committer emits; nothing stands downstream of it."""

    def emit(self, *values: Any) -> None:
        """Drop a tuple."""

    def emit_batch(self, batch: Any) -> None:
        """Drop tuples."""


class MapStateView:
    """A state as a committer bolt sees it: what was before the transaction, and what this attempt has put (row R25)."""

    def __init__(self, component: str, state: TransactionState, attempt: TransactionAttempt) -> None:
        self.written: dict[Key, tuple[Any, ...]] = {}
        self._component, self._state, self._attempt = component, state, attempt
        self._read: dict[Key, tuple[Any, ...] | None] = {}
        self._single = len(state.values) == 1

    def get(self, *key: Any) -> Any:
        """The value of one key, None when it does not exist."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values of several keys, read at once."""
        wanted = [self._as_key(key) for key in keys]
        unread = [key for key in dict.fromkeys(wanted) if key not in self.written and key not in self._read]
        if unread:
            found = self._state.get(self._attempt, unread)
            self._read.update({key: found.get(key) for key in unread})
        return [self._value(self.written.get(key, self._read.get(key))) for key in wanted]

    def put(self, key: Key | Any, value: Any) -> None:
        """Set the value of one key."""
        values = (value,) if self._single else tuple(value)
        if len(values) != len(self._state.values):
            raise SchemaMismatch(
                f"committer {self._component!r} put {len(values)} values; its state has "
                f"{', '.join(self._state.values.names)}"
            )
        self.written[self._as_key(key)] = values

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`; return the new values."""
        self.multi_get(keys)  # read at once; a key that is given twice is updated twice
        new = []
        for key in keys:
            new.append(update(self.multi_get([key])[0]))
            self.put(key, new[-1])
        return new

    def _as_key(self, key: Key | Any) -> Key:
        values = key if isinstance(key, tuple) else (key,)
        if len(values) != len(self._state.key):
            raise SchemaMismatch(
                f"committer {self._component!r} used key {values!r}; the key of its state is "
                f"({', '.join(self._state.key.names)})"
            )
        return values

    def _value(self, values: tuple[Any, ...] | None) -> Any:
        return values[0] if values is not None and self._single else values
