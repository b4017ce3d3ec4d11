"""Makes the states of stateful bolts that declare none, by the provider that a URL in the configuration names.

Providers are entry points, so that another package may add one.
"""

from __future__ import annotations

from typing import Protocol

from transactional.core.ports import State
from transactional.model.errors import ConfigError
from transactional.model.plumbing.entry_points import entry_points_of
from transactional.model.plumbing.redaction import without_login
from transactional.model.schema import did_you_mean

PROVIDERS = "transactional.states"
"""The group of entry points of providers."""


class StateProvider(Protocol):
    """The object that an entry point of the group names: it makes the state of one bolt."""

    def __call__(self, url: str, topology_id: str, component_id: str, key: str, values: str) -> State:
        """Make a state with these columns, in DDL. Raises `ConfigError` for a URL that names no location."""


def make_provided_state(url: str, topology_id: str, component_id: str, key: str, values: str) -> State:
    """Make the state of a bolt with the provider that has the name of the URL's scheme.

    `{topology}` and `{component}` in the URL are replaced by the ids. Raises `ConfigError` if there is no such
    provider.
    """
    scheme = url.partition(":")[0].partition("+")[0]
    providers = entry_points_of(PROVIDERS)
    if scheme not in providers:
        names = ", ".join(sorted(providers)) or "(none: is transactional installed?)"
        raise ConfigError(
            f"state_provider {without_login(url)!r}: there is no provider {scheme!r}; known: {names}"
            f"{did_you_mean(scheme, providers)}"
        )
    place = url.replace("{topology}", topology_id).replace("{component}", component_id)
    provide: StateProvider = providers[scheme].load()
    return provide(place, topology_id, component_id, key, values)
