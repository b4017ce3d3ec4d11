"""`StatefulBolt` and `KeyValueState`: a bolt that reads and writes a state while it processes its tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import Bolt, OutputCollector, TopologyContext


class KeyValueState(Protocol):
    """Key → value, as a `StatefulBolt` sees its state: as it was before this transaction, with what this attempt has
    put since.

    A key is the value of the key column, or a tuple if there are several; a value likewise. A timestamp without a time
    zone is in UTC.
    """

    def get(self, key: object, default: Any = None) -> Any:
        """The value of a key; `default` if the key does not exist."""

    def put(self, key: object, value: object) -> None:
        """Set the value of a key."""

    def delete(self, key: object) -> Any:
        """Delete a key, and return its value; None if it does not exist. The state needs `deletes=True`."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys with their values, in order of the keys. Reads the whole table."""

    def __contains__(self, key: object) -> bool:
        """Whether a key exists."""


class StatefulBolt(Bolt, ABC):
    """Processes one tuple at a time, and may read and write its state while doing so (Storm's `IStatefulBolt`).

    It runs in the commit phase, one transaction at a time, in txid order. Each task of each attempt uses a fresh copy
    of the instance passed to the builder: what is to last belongs in the state. `state` declares the state's columns,
    such as `word string -> count long`.
    """

    state: ClassVar[str] = ""
    collector: OutputCollector

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Called once per task and attempt, first. Keeps the collector as `self.collector`."""
        self.collector = collector

    @abstractmethod
    def init_state(self, state: KeyValueState) -> None:
        """Called once per task and attempt, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple."""

    def pre_prepare(self, txid: int) -> None:
        """Called once after the last tuple of the batch, also if there was none: the state is about to be written. May
        still emit and put."""

    def pre_commit(self, txid: int) -> None:
        """Called when the states of all bolts are written, right before the transaction commit: at least once per
        transaction, again if the transaction commit itself fails. An exception fails the attempt."""

    def pre_rollback(self, txid: int) -> None:
        """Called before `init_state` if an earlier attempt at this transaction had written the state: what it has
        written is about to be replaced."""
