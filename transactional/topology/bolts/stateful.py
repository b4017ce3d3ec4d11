"""`StatefulBolt` and `KeyValueState`: a bolt that reads and writes a state while it processes its tuples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.bolts import Bolt, OutputCollector, TopologyContext


class KeyValueState(Protocol):
    """The keys and values of a state, as a `StatefulBolt` sees them.

    They are as before this transaction, with what this attempt has put since. A key is the value of the key column, or
    a tuple if there are several; likewise a value. A timestamp without a time zone is in UTC.
    """

    def get(self, key: object, default: Any = None) -> Any:
        """Return the value of a key; `default` if the key does not exist."""

    def put(self, key: object, value: object) -> None:
        """Set the value of a key."""

    def delete(self, key: object) -> Any:
        """Delete a key, and return its value; None if it does not exist. The state needs `deletes=True`."""

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Iterate over all keys with their values, in the order of the keys. Reads the whole table."""

    def __contains__(self, key: object) -> bool:
        """Return whether a key exists in the state."""


class StatefulBolt(Bolt, ABC):
    """Processes one tuple at a time, and may read and write its state while doing so, as Storm's `IStatefulBolt`.

    It runs in the commit phase, one transaction at a time, in txid order. Each task of each attempt uses a fresh copy
    of the instance that was passed to the builder: what must last belongs in the state. `state` declares the state's
    columns, such as `word string -> count long`.
    """

    state: ClassVar[str] = ""
    collector: OutputCollector

    def prepare(self, context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare for an attempt. Called once per task, first; keeps the collector as `self.collector`."""
        self.collector = collector

    @abstractmethod
    def init_state(self, state: KeyValueState) -> None:
        """Receive the state. Called once per task and attempt, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple, with reads and writes of the state."""

    def pre_prepare(self, txid: int) -> None:
        """Finish the batch: the state is about to be written. It may still emit and put.

        Called once after the last tuple, even if there was none.
        """

    def pre_commit(self, txid: int) -> None:
        """React to the states of all bolts being written, right before the transaction commit.

        Called at least once per transaction: again if the transaction commit itself fails. An exception fails the
        attempt.
        """

    def pre_rollback(self, txid: int) -> None:
        """React to a rollback: an earlier attempt at this transaction has written the state, which is about to be
        replaced.

        Called before `init_state`.
        """
