"""A committer bolt's view of its state in the commit phase, and the stand-in that refuses every use before that.

A view reads the state as it was before the transaction, and keeps what the bolt puts until the commit phase writes it.
In the processing phase earlier transactions may not be committed yet, so the stand-in raises `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from transactional.model.absent import ABSENT, Absent
from transactional.model.arrow.zones import key_with_zones, with_zones
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import ConfigError, SchemaMismatch
from transactional.model.schema import Schema
from transactional.model.user_code.storm_names import StormNames
from transactional.model.user_code.tuples import Key


class ReadState(Protocol):
    """The readable state of a bolt: the whole table, or the part of one task."""

    @property
    def key(self) -> Schema:
        """The columns of the state's key."""

    @property
    def values(self) -> Schema:
        """The columns of the state's values."""

    def get(self, attempt: TransactionAttempt, keys: Sequence[Key]) -> dict[Key, tuple[Any, ...]]:
        """Return the values before the transaction of those keys that exist."""

    def items(self, attempt: TransactionAttempt) -> Iterable[tuple[Key, tuple[Any, ...]]]:
        """Return all keys with their values before the transaction."""


class DeferredState:
    """The stand-in for a committer's state while its batch is processed: the state may only be used in
    `finish_batch`."""

    def __init__(self, component: str) -> None:
        self.component = component

    def get(self, *key: object) -> Any:
        """Raise `ConfigError`: the state can't be used yet."""
        self._refuse()

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Raise `ConfigError`: the state can't be used yet."""
        self._refuse()

    def put(self, key: object, value: object) -> None:
        """Raise `ConfigError`: the state can't be used yet."""
        self._refuse()

    def delete(self, *key: object) -> None:
        """Raise `ConfigError`: the state can't be used yet."""
        self._refuse()

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Raise `ConfigError`: the state can't be used yet."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"committer {self.component!r} used its state in prepare or execute, where earlier transactions may not be "
            "committed yet: collect in execute, and use the state in finish_batch"
        )


class DeferredLookups(Mapping[str, Any]):
    """The stand-in for the states that a bolt looks up, while its batch is processed."""

    def __init__(self, component: str) -> None:
        self.component = component

    def __getitem__(self, committer: str) -> NoReturn:
        raise ConfigError(
            f"bolt {self.component!r} looked up the state of {committer!r} in prepare or execute, where earlier "
            "transactions may not be committed yet: collect in execute, and look up in finish_batch"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class MapStateView(StormNames):
    """A state as a committer bolt sees it: its content before the transaction, and what this attempt has put."""

    needs_driver = ""
    """Always empty, unlike `KeyValues.needs_driver`: keys are used in `finish_batch`, and belong to no single tuple."""

    def __init__(self, component: str, state: ReadState, attempt: TransactionAttempt) -> None:
        self.changes: dict[Key, tuple[Any, ...] | Absent] = {}
        self._component, self._state, self._attempt = component, state, attempt
        self._read: dict[Key, tuple[Any, ...] | None] = {}
        self._has_one_value = len(state.values) == 1
        self._has_times = any(field.type == "timestamp" for field in state.key)
        self._puts_times = any("timestamp" in field.type for field in state.values)

    def get(self, *key: Any) -> Any:
        """Return the value of one key, or None if it does not exist. A key of several columns may be given as a
        tuple."""
        return self.multi_get([key[0] if len(key) == 1 else key])[0]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Return the values of several keys, which are read at once."""
        state_keys = [self._state_key(key) for key in keys]
        unread = [key for key in dict.fromkeys(state_keys) if key not in self.changes and key not in self._read]
        if unread:
            stored = self._state.get(self._attempt, unread)
            self._read.update({key: stored.get(key) for key in unread})
        return [self._bolt_value(self.changes.get(key, self._read.get(key))) for key in state_keys]

    def put(self, key: object, value: Any) -> None:
        """Set the value of one key."""
        values = (value,) if self._has_one_value else tuple(value)
        if len(values) != len(self._state.values):
            raise SchemaMismatch(
                f"committer {self._component!r} put {len(values)} values; its state has "
                f"{', '.join(self._state.values.names)}"
            )
        self.changes[self._state_key(key)] = with_zones(values) if self._puts_times else values

    def delete(self, *key: object) -> None:
        """Delete a key, whether or not it exists."""
        self.changes[self._state_key(key[0] if len(key) == 1 else key)] = ABSENT

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`; return the new values."""
        self.multi_get(keys)  # all keys in one read; a key that is passed twice is updated twice
        new_values = []
        for key in keys:
            new_values.append(update(self.multi_get([key])[0]))
            self.put(key, new_values[-1])
        return new_values

    def close(self) -> None:
        """Do nothing. The state was written."""

    def _state_key(self, key: object) -> Key:
        values = tuple(key) if isinstance(key, tuple) else (key,)  # a `Tuple` is not equal to one of another stream
        if len(values) != len(self._state.key):
            raise SchemaMismatch(
                f"committer {self._component!r} used key {values!r}; the key of its state is "
                f"({', '.join(self._state.key.names)})"
            )
        if self._has_times:
            return key_with_zones(values, self._state.key.names, component=self._component)
        return values

    def _bolt_value(self, values: tuple[Any, ...] | Absent | None) -> Any:
        if values is None or values is ABSENT:
            return None
        return values[0] if self._has_one_value else values
