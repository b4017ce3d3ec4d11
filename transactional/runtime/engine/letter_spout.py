"""`LetterSpout` wraps a topology's spout for one run, which sends dead letters to their bolts again.

The letters become part of the recorded batch, so the run has the guarantees of any other one. The positions in the
source do not move. All other parts are those of the topology's own spout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.spout_parts import Planning, SpoutParts
from transactional.core.ports.stream_names import current_origin
from transactional.core.store.history import RunRecord
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError
from transactional.model.guarantees import Guarantee
from transactional.model.letters import Letter
from transactional.model.schema import Schema
from transactional.runtime.engine.history.bolts import EarlierBolts
from transactional.runtime.engine.message_letters import messages_of_letters
from transactional.topology.describing import describe_topology
from transactional.topology.topology import Topology

LETTERS_PER_TRANSACTION = 100
"""Most letters in one transaction: they are part of the recorded batch, which should stay small."""

LetterKey = tuple[int, int]
"""The txid of the transaction that has set a tuple aside, and the number of the letter in it."""


class LetterSpout(Spout, Planning):
    """Plans transactions of dead letters only: the source's positions do not move.

    Letters are read from the table when a transaction is planned, under the topology's lease. Letters that were retried
    are skipped, so each is retried once, however often it is requested. `keys` are the requested letters, or None for
    all that are waiting when the first transaction is planned. Only one transaction may be in flight. If messages are
    followed one by one, a letter is a message, which is read from the source once more.

    `returned` has the letters whose transaction was committed without them, because its attempts failed and no tuple
    could be identified as the cause. They wait as before, and are not planned a second time.

    `runs` are the runs of the topology, newest first. They are used to find bolts whose ids have changed.
    """

    def __init__(
        self, topology: Topology, keys: Collection[LetterKey] | None = None, runs: Sequence[RunRecord] = ()
    ) -> None:
        self._topology, self._spout, self._keys, self._runs = topology, topology.spout, keys, runs
        self._planned: set[LetterKey] = set()
        self.returned: set[LetterKey] = set()

    @property
    def parts(self) -> SpoutParts:
        """The parts of the topology's spout, but its own planning, and the kind of a run of letters."""
        parts = self._spout.parts
        return replace(parts, streams=replace(parts.streams, kind=type(self).__name__), planning=self)

    @property
    def has_ended(self) -> bool:
        """True, because no further letters arrive during the run."""
        return True

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """Plan the next letters. A transaction that was recorded before the run is planned by the topology's spout."""
        if replay:
            return self._spout.plan(after, replay=True)
        waiting = waiting_letters(self._topology, self._keys, self._runs)
        if self._keys is None:  # one that fails again becomes a new letter, which this run does not retry
            self._keys = {letter.key for letter in waiting}
        waiting = [letter for letter in waiting if letter.key not in self.returned][:LETTERS_PER_TRANSACTION]
        self._planned = {letter.key for letter in waiting}
        if not waiting:
            return None
        ranges = {partition: OffsetRange(offset, offset) for partition, offset in after.positions().items()}
        messages = messages_of_letters(waiting) if self._topology.follows_messages else ()
        return BatchMetadata(ranges, metadata=after.metadata, letters=tuple(waiting), again=messages)

    @property
    def can_limit_batches(self) -> bool:
        return True

    @property
    def batch_records_max(self) -> int:
        """The limit `LETTERS_PER_TRANSACTION`, whatever `target_latency_ms` says."""
        return LETTERS_PER_TRANSACTION

    def limit_batches(self, limit: BatchLimit) -> None:
        """Do nothing: the number of letters has a fixed limit."""

    @property
    def output(self) -> Schema:
        return self._spout.output

    @property
    def replays_exactly(self) -> bool:
        return self._spout.replays_exactly

    def copy_unopened(self) -> Self:
        """Return a copy over a copy of the topology's spout, as `Spout.copy_unopened`."""
        duplicate = super().copy_unopened()
        duplicate._spout = self._spout.copy_unopened()
        return duplicate

    def identity(self) -> Mapping[str, str]:
        return self._spout.identity()

    def open(self) -> None:
        self._spout.open()

    def reader(self) -> PartitionReader:
        return self._spout.reader()

    def committed(self, batch: BatchMetadata) -> None:
        self.returned |= self._planned - {letter.key for letter in batch.letters}
        self._planned = set()
        self._spout.committed(batch)

    def close(self) -> None:
        self._spout.close()


def check_retries(topology: Topology, config: TopologyConfig) -> None:
    """Raise `ConfigError` if no option limits the retries of a topology with a table of dead letters."""
    exactly_once = topology.guarantee is Guarantee.EXACTLY_ONCE
    option = "attempts_max" if exactly_once else "message_retries_max"
    if topology.dead_letters is not None and getattr(config, option) is None:
        raise ConfigError(
            f"topology {topology.id!r} has a table of dead letters, but {option} is not set, so that "
            f"failures would be retried forever: set {option}=3, for example"
        )


def all_letters(topology: Topology) -> list[dict[str, Any]]:
    """Return the rows of the topology's table of dead letters, sorted by key. Raises `ConfigError` if it has none."""
    state = topology.dead_letters
    if state is None:
        raise ConfigError(f"topology {topology.id!r} keeps no dead letters: declare them with set_dead_letters(…)")
    rows: list[dict[str, Any]] = state.parts.reading.read().to_pylist()
    return sorted(rows, key=lambda row: (row["transaction"], row["number"]))


def waiting_letters(
    topology: Topology, keys: Collection[LetterKey] | None, runs: Sequence[RunRecord] = ()
) -> list[Letter]:
    """Return the letters that were not retried yet, or the requested ones of them; for `runs` see `LetterSpout`.

    Raises `ConfigError` for a letter that does not exist, or whose bolt can't be identified in the topology.
    """
    rows = {(row["transaction"], row["number"]): row for row in all_letters(topology)}
    for key in keys or ():
        if key not in rows:
            raise ConfigError(f"there is no dead letter {key[0]}:{key[1]}; topology {topology.id!r} has {len(rows)}")
    waiting = [rows[key] for key in (rows if keys is None else sorted(keys)) if rows[key]["tried_again_in"] is None]
    bolts = EarlierBolts(describe_topology(topology), runs)
    return [_letter(topology, row, bolts) for row in waiting]


def _letter(topology: Topology, row: Mapping[str, Any], bolts: EarlierBolts) -> Letter:
    key, bolt_ids = (row["transaction"], row["number"]), [component.id for component in topology.components]
    source, bolt = (bolts.current_id(row[name], key[0]) or "" for name in ("source", "component"))
    origin = current_origin(source, row["stream"], topology.spout_id, topology.spout.parts.streams.outputs, bolt_ids)
    is_record = row["component"] == row["source"]
    component = origin[0] if is_record else bolt
    inputs = {component.id: [grouping.origin for grouping in component.inputs] for component in topology.components}
    inputs[topology.spout_id] = [(topology.spout_id, stream) for stream in topology.spout.parts.streams.outputs]
    if origin not in inputs.get(component, []):
        raise ConfigError(
            f"dead letter {key[0]}:{key[1]} came to {'spout' if is_record else 'bolt'} {row['component']!r} from "
            f"{row['source']!r}, stream {row['stream']!r}; topology {topology.id!r} no longer has such a subscription, "
            "or has several that it may be"
        )
    return Letter(*key, component, *origin, row["tuple"], row["error"])
