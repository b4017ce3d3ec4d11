"""Where the states of stateful bolts come from that are given none: a provider, named by a URL in the configuration."""

from __future__ import annotations

from typing import Protocol

from transactional.core.ports import State
from transactional.model.errors import ConfigError
from transactional.model.plumbing.entry_points import entry_points_of
from transactional.model.plumbing.redaction import without_login
from transactional.model.schema import did_you_mean

PROVIDERS = "transactional.states"
"""The group of entry points: another package may add a provider."""


class StateProvider(Protocol):
    """What an entry point of the group names: makes the state of one bolt."""

    def __call__(self, url: str, topology_id: str, component_id: str, key: str, values: str) -> State:
        """A state with these columns, in DDL. Raises `ConfigError` for a URL that names no place."""


def provided_state(url: str, topology_id: str, component_id: str, key: str, values: str) -> State:
    """The state of a bolt, from the provider named like the URL's scheme: `{topology}` and `{component}` in the URL
    stand for the ids. Raises `ConfigError`."""
    scheme = url.partition(":")[0].partition("+")[0]
    providers = entry_points_of(PROVIDERS)
    if scheme not in providers:
        known = ", ".join(sorted(providers)) or "(none: is transactional installed?)"
        raise ConfigError(
            f"state_provider {without_login(url)!r}: there is no provider {scheme!r}; known: {known}"
            f"{did_you_mean(scheme, providers)}"
        )
    place = url.replace("{topology}", topology_id).replace("{component}", component_id)
    provide: StateProvider = providers[scheme].load()
    return provide(place, topology_id, component_id, key, values)
