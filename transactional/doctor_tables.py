"""Which tables the doctor looks at, at a start and on demand, and how it tells of their Delta commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transactional.errors import OperatingError
from transactional.topology import Topology

if TYPE_CHECKING:
    from verifier.delta_log import DeltaCommit


@contextmanager
def answering(location: Any) -> Iterator[None]:
    """Raise `OperatingError` when the storage at a location does not answer."""
    try:
        yield
    except OSError as error:
        raise OperatingError(f"Delta table {location} can't be looked at: {location.reason(error)}") from None


def delta_states(topology: Topology) -> Iterator[tuple[str, Any]]:
    """The committers whose states are in Delta tables with a place of their own."""
    for component in topology.committers:
        state: Any = component.state
        location = getattr(state, "location", None)
        if location is not None and not location.is_catalog_name:
            yield component.id, state


def is_foreign(commit: DeltaCommit, owner: str) -> bool:
    """True for a Delta commit that changes rows and is not the topology's, nor a fold of a table in the log layout."""
    return commit.changes_data and owner not in commit.app_versions and f"{owner}#fold" not in commit.app_versions


def named(commit: DeltaCommit) -> str:
    """A Delta commit in words."""
    return f"Delta version {commit.version} ({commit.operation or 'unnamed'})"
