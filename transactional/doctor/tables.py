"""Which tables the doctor looks at, at a start and on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transactional.errors import OperatingError
from transactional.topology.topology import Topology


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
