"""Transfers a bolt's instance from its task to the commit phase, without its collector and its state.

Both are stand-ins on the executor. They are pickled by name, and replaced by the driver's own when the instance arrives
(pickle's persistent ids). Only instances that our own tasks sent in the same Spark job are ever unpickled.
"""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from transactional.runtime.tasks.map_state import DeferredLookups, DeferredState
from transactional.topology.bolts.bolts import BoltMetrics, OutputCollector

if TYPE_CHECKING:  # cloudpickle ships no types; its pickler is one of pickle's
    from pickle import Pickler
else:
    from cloudpickle import Pickler


def dump_instance(bolt: object, collector: OutputCollector) -> bytes:
    """Pickle a bolt's instance, leaving out its collector and state."""
    buffer = io.BytesIO()
    _Pickler(buffer, collector).dump(bolt)
    return buffer.getvalue()


def load_instance(
    data: bytes, collector: OutputCollector, state: object, lookups: object = None, metrics: BoltMetrics | None = None
) -> Any:
    """Unpickle a bolt's instance with this collector, state and lookups instead of the stand-ins.

    Its counters begin at 0, because its task has reported the earlier counts.
    """
    replacements = {"collector": collector, "state": state, "lookups": lookups, "metrics": metrics or BoltMetrics()}
    return _Unpickler(io.BytesIO(data), replacements).load()


class _Pickler(Pickler):
    def __init__(self, buffer: io.BytesIO, collector: OutputCollector) -> None:
        super().__init__(buffer)
        self._collector = collector

    def persistent_id(self, obj: object) -> str | None:
        if obj is self._collector:
            return "collector"
        if isinstance(obj, DeferredLookups):
            return "lookups"
        if isinstance(obj, BoltMetrics):
            return "metrics"
        return "state" if isinstance(obj, DeferredState) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, replacements: dict[str, object]) -> None:
        super().__init__(buffer)
        self._replacements = replacements

    def persistent_load(self, pid: Any) -> object:
        return self._replacements[pid]
