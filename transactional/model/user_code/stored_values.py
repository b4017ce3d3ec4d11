"""Values of users that are stored as JSON: the metadata of a spout's batches, and the identities of spouts, states and
sinks, which are in a topology's fingerprint.

A value that comes back as something else, such as a tuple or a `Path`, would show at the next start only. So it is
refused where it is returned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from transactional.model.errors import ConfigError
from transactional.model.plumbing.tracebacks import function_location

_ADVICE: Final = "return dictionaries with text as keys, lists, text, numbers, True, False or None"


def to_json_and_back(call_name: str, stored_value: Any, noun: str = "metadata") -> Any:
    """Return a value as it comes back from JSON. Raises `ConfigError` if that differs.

    `call_name` is the call that has returned the value, and `noun` a plural that says what it is, for messages.
    """
    try:
        parsed = json.loads(json.dumps(stored_value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{call_name} returned {noun} that are not JSON, {shorten(stored_value)}: {error}; {_ADVICE}"
        ) from error
    if parsed != stored_value:
        raise ConfigError(
            f"{call_name} returned {shorten(stored_value)}, which JSON turns into {shorten(parsed)}; {_ADVICE}"
        )
    return parsed


class HasIdentity(Protocol):
    """A spout, a state or a sink, or what a user derives from the contract of one."""

    def identity(self) -> Mapping[str, Any]:
        """Return the properties that must stay the same across restarts."""


def read_identity(port: HasIdentity) -> dict[str, Any]:
    """Return the identity of a spout, a state or a sink. Raises `ConfigError` if it can't be stored as JSON.

    The error has the place of the method if a user wrote it.
    """
    identity, call_name = port.identity(), f"{type(port).__name__}.identity"
    try:
        if not isinstance(identity, Mapping):
            raise ConfigError(
                f"{call_name} returned {shorten(identity)}; return a dictionary, such as {{'path': '/in'}}"
            )
        stored: dict[str, Any] = to_json_and_back(call_name, dict(identity), "properties")
    except ConfigError as error:
        location = function_location(type(port).identity)
        raise ConfigError(f"{error} ({location})") from None if location else error
    return stored


def shorten(user_value: Any) -> str:
    """Return a user's value for a message, at most 100 characters long."""
    text = repr(user_value)
    return text if len(text) <= 100 else f"{text[:97]}..."
