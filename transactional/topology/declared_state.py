"""The state of a committer or of a stateful bolt, as a program declares it, and the errors for wrong declarations."""

from __future__ import annotations

from typing import Any

from transactional.core.ports import PersistentAggregate, State
from transactional.core.ports.providing import make_provided_state
from transactional.model.aggregates import Aggregate
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.topology.bolts.stateful import StatefulBolt

STATE_EXAMPLE = "state=DeltaMapState('tables/totals', key='name string', values='total long')"
"""An example of a state, for messages."""
UPDATES = (
    '`{0}(…).count()`, `.sum("amount")`, or `.aggregate(amount=Last("amount"))` for the newest value of a field '
    "(`from state import Last`)"
)
"""Examples of updates of a class of states, for messages."""


def check_is_update(bolt_id: str, bolt: object) -> None:
    """Raise `ConfigError` for a committer that is neither an update of a state nor a bolt."""
    if isinstance(bolt, State):
        raise ConfigError(
            f"committer bolt {bolt_id!r} is a state, which does not say what becomes of its row when a tuple comes: "
            f"pass an update of it, such as {UPDATES.format(type(bolt).__name__)}; or a BatchBolt with state=…"
        )
    if not isinstance(bolt, PersistentAggregate):
        hint = ""
        if isinstance(bolt, Aggregate):
            hint = f"; an aggregate belongs to a state: `DeltaMapState(…).aggregate(name={type(bolt).__name__}(…))`"
        raise ConfigError(
            f"committer bolt {bolt_id!r} is a {type(bolt).__name__}; a committer is a BatchBolt with state=…, "
            f"or a state's update such as DeltaMapState(…).count(){hint}"
        )


def refuse_update(bolt_id: str, bolt: object) -> None:
    """Raise `ConfigError` for a state, or for its update, that is added as a bolt of the processing phase."""
    if isinstance(bolt, State):
        raise ConfigError(
            f"bolt {bolt_id!r} is a state: add an update of it with set_committer_bolt, such as "
            f"{UPDATES.format(type(bolt).__name__)}"
        )
    if isinstance(bolt, PersistentAggregate):
        raise ConfigError(f"bolt {bolt_id!r} updates a state: add it with set_committer_bolt")


def check_is_state(kind: str, bolt_id: str, state: Any) -> None:
    """Raise `ConfigError` unless the argument is a state."""
    if not isinstance(state, State):
        raise ConfigError(
            f"{kind} {bolt_id!r}: state=… is a {type(state).__name__}, which is not a state; pass for "
            f"example {STATE_EXAMPLE.removeprefix('state=')}"
        )


def check_deletes(bolt_id: str, state: State) -> None:
    """Allow a state to delete keys. Raises `ConfigError` if it can't."""
    try:
        state.parts.declared.allow_deletes()
    except ConfigError as error:
        text = f"windowed bolt {bolt_id!r}: {error}, as those of tuples whose windows have closed"
        raise type(error)(text) from error


def refuse_stateful(kind: str, bolt_id: str, bolt: object) -> None:
    """Raise `ConfigError` for a stateful bolt that is added by another method."""
    if isinstance(bolt, StatefulBolt):
        raise ConfigError(f"{kind} {bolt_id!r} is a StatefulBolt: add it with set_stateful_bolt")


def declared_columns(bolt_id: str, text: str) -> tuple[Schema, Schema]:
    """Key and values of `word string -> count long`. Raises `ConfigError`."""
    key, arrow, values = text.partition("->")
    if not arrow or not values.strip():
        raise ConfigError(
            f"stateful bolt {bolt_id!r}: its state {text!r} is not of the form 'key -> values', such as "
            "'word string -> count long'"
        )
    try:
        return Schema.parse(key), Schema.parse(values)
    except ConfigError as error:
        raise ConfigError(f"stateful bolt {bolt_id!r}: its state {text!r}: {error}") from error


def state_of_provider(provider: str | None, topology_id: str, bolt_id: str, text: str) -> State:
    """Return the state of a bolt that was given none. Raises `ConfigError`."""
    if provider is None:
        raise ConfigError(
            f"stateful bolt {bolt_id!r} has no state: pass state=…, for example {STATE_EXAMPLE}, or set the option "
            "state_provider, for example to delta:tables/{component}"
        )
    if not text:
        raise ConfigError(
            f"stateful bolt {bolt_id!r} does not declare its state's columns, which the provider needs: set state in "
            "its class, such as state = 'word string -> count long'"
        )
    key, values = declared_columns(bolt_id, text)
    try:
        return make_provided_state(provider, topology_id, bolt_id, str(key), str(values))
    except ConfigError as error:
        raise type(error)(f"stateful bolt {bolt_id!r}: {error}") from error


def bind_declared(bolt_id: str, text: str, state: State) -> None:
    """Set the columns of a state to those that its bolt declares. Raises `ConfigError` if it has other ones."""
    key, values = declared_columns(bolt_id, text)
    try:
        state.parts.declared.bind(key, values)
    except ConfigError as error:
        raise type(error)(f"stateful bolt {bolt_id!r} declares the state {text!r}: {error}") from error
