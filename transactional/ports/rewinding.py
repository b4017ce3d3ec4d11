"""The port through which a rewind takes states back to an earlier transaction.

A state that implements it can be taken back; a topology with a committer whose state does not can't.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transactional.attempt import AttemptId, TxId


@dataclass(frozen=True, slots=True)
class RewindTarget:
    """The transaction that a table is taken back to. `attempt_id` is the attempt that committed it; None: it is 0, the
    beginning.

    `txid_of` gives the transaction of an attempt that has written the table, None if the store does not know it. The
    table of a committer that joined after `txid` goes back to what it was before its first transaction.
    """

    txid: TxId
    attempt_id: AttemptId | None
    txid_of: Callable[[AttemptId], TxId | None]


@runtime_checkable
class RewindableState(Protocol):
    """A state that keeps enough of what was to go back."""

    def reach(self, topology_id: str, component_id: str, target: RewindTarget) -> str:
        """What going back would mean for the table of this committer, in words. Changes nothing; it need not be open.

        Raises `BeyondKept` if something that it takes is gone, `OperatingError` if the storage does not respond.
        """

    def rewind(self, target: RewindTarget, fence_id: AttemptId) -> None:
        """Take the open table back, and write `fence_id` as its version, in one write; called after `fence`.

        What it does is the same however often it is repeated, also by another process with a higher fence id, and
        whatever the table is at by then. Raises `Fenced` when the version is higher, `BeyondKept`, `OperatingError`.
        """


@runtime_checkable
class HoldingState(Protocol):
    """A state whose maintenance deletes what going back would take, unless it is held."""

    def hold(self, targets: Sequence[RewindTarget]) -> None:
        """Keep from now on what going back to any of these takes, and no longer what was held for others.

        Called in the commit thread, for the open table. What is gone already can't be held: it is logged. Raises
        `OperatingError`, after which it is called again.
        """
