"""The ends of the targets of sinks, when a lost store is brought to the transaction of the tables.

The records for a sink were in the outbox of the store only, and the journal does not have them. So a target that ends
before the tables may lack records for good, unless the topology goes back to that transaction and computes them again.
Whether that is possible is decided from the journal and the tables, before the store is changed. A target is never
changed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transactional.core.ports import SinkOwner
from transactional.core.ports.state_parts import RewindTarget
from transactional.core.store.outbox import Boundary
from transactional.model.attempt import AttemptId, TxId
from transactional.model.batch import BatchMetadata
from transactional.model.errors import BeyondKept, ConfigError, StoreMismatch
from transactional.runtime.engine.rewinding import compare_with_source
from transactional.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class SinkEnds:
    """The transaction up to which the target of each sink has all records, and that of the tables, `last_txid`."""

    topology: Topology
    boundaries: Mapping[str, Boundary]
    last_txid: TxId

    @classmethod
    def read(cls, topology: Topology, last_txid: TxId, rewinds: Mapping[AttemptId, TxId]) -> SinkEnds:
        """Read the ends, without fencing anybody. `rewinds` has the transaction of each finished rewind, by its fence.

        Raises `StoreMismatch` for a target without a position.
        """
        boundaries = dict[str, Boundary]()
        for name, sink in topology.sinks.items():
            sink.prepare()
            position = sink.look(SinkOwner(topology.id, name, ""))
            if position is None:
                raise StoreMismatch(
                    f"sink {name!r}: {sink.target_name} does not say up to which transaction it has been published, "
                    f"and the tables are at {last_txid}: only the lost store had its records that were not sent yet, "
                    "if there were any. Restore the store from a backup, or repair the topology without this sink and "
                    "add it again, which gives those records up; nothing was changed"
                )
            attempt = position.publication.attempt
            targets = [txid for fence_id, txid in rewinds.items() if fence_id > attempt.attempt_id]
            boundaries[name] = Boundary(min(last_txid, attempt.txid, *targets), attempt.attempt_id)
        return cls(topology, boundaries, last_txid)

    @property
    def rewind_txid(self) -> TxId | None:
        """The transaction to which the topology has to go back, or None if no target ends before the tables."""
        lowest = min((boundary.txid for boundary in self.boundaries.values()), default=self.last_txid)
        return lowest if lowest < self.last_txid else None

    @property
    def missing_records(self) -> str:
        """The sinks whose targets end before the tables, each with the transactions of which only the store had
        records."""
        return "; ".join(
            f"sink {name!r} has published up to transaction {boundary.txid}, and the tables are at {self.last_txid}: "
            f"only the lost store had its records of transactions {boundary.txid + 1} to {self.last_txid}, if there "
            "were any"
            for name, boundary in sorted(self.boundaries.items())
            if boundary.txid < self.last_txid
        )

    def check_sent(self, *, accepts_sent: bool) -> None:
        """Raise `ConfigError` if a target would get records a second time, and nobody has accepted that."""
        if accepts_sent or self.rewind_txid is None:
            return
        ahead = [
            f"sink {name!r} has published transactions up to {boundary.txid}"
            for name, boundary in sorted(self.boundaries.items())
            if boundary.txid > self.rewind_txid and not self.topology.sinks[name].can_go_back
        ]
        if ahead:
            raise ConfigError(
                f"{self.missing_records}. The repair would go back to transaction {self.rewind_txid} to compute them "
                f"again, but {', and '.join(ahead)}: what is computed again is sent again. Pass --accept-sent if "
                "readers can stand that, or restore the store from a backup; nothing was changed"
            )

    def check_rewind(self, current: BatchMetadata, target: BatchMetadata, targets: Mapping[str, RewindTarget]) -> None:
        """Raise `StoreMismatch` if the topology can't go back: a state, or the source.

        `current` is the batch of the tables' transaction, `target` that of the transaction to go back to. `targets` has
        the version of each table there.
        """
        try:
            if self.topology.spout.parts.messages.is_acked:
                raise ConfigError("the queue of the spout hands a message out once")
            for component in self.topology.committers:
                if component.state is None:
                    continue
                rewinding = component.state.parts.rewind
                if rewinding.rewind_obstacle or component.id not in targets:
                    raise ConfigError(
                        f"the table of {component.id!r} can't go back: a {type(component.state).__name__} "
                        f"{rewinding.rewind_obstacle or 'has no history'}"
                    )
                rewinding.preview_rewind(self.topology.id, component.id, targets[component.id])
            _, deleted = compare_with_source(self.topology.spout, current, target)
            if deleted:
                raise BeyondKept("; ".join(deleted))
        except (BeyondKept, ConfigError) as error:
            raise StoreMismatch(
                f"{self.missing_records}. The topology can't go back to transaction {self.rewind_txid} to compute them "
                f"again: {error}. Restore the store from a backup; nothing was changed"
            ) from error
