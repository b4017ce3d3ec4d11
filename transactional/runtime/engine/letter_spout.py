"""`LetterSpout`: wraps a topology's spout for one run, in which dead letters are sent to their bolts again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from transactional.core.ports import PartitionReader, Spout
from transactional.core.ports.examining import SourceAddress
from transactional.core.ports.stream_names import current_origin
from transactional.core.store.history import RunRecord
from transactional.model.batch import BatchLimit, BatchMetadata, OffsetRange, PartitionId
from transactional.model.config import TopologyConfig
from transactional.model.errors import ConfigError
from transactional.model.facts import EventTime, Listing
from transactional.model.guarantees import Guarantee
from transactional.model.letters import Letter
from transactional.model.messages import FailedMessage
from transactional.model.schema import Schema
from transactional.runtime.engine.history.bolts import Bolts
from transactional.runtime.engine.message_letters import messages_of_letters
from transactional.topology.describing import described
from transactional.topology.topology import Topology

if TYPE_CHECKING:
    pass

LETTERS_PER_TRANSACTION = 100
"""Letters are part of the recorded batch, so a transaction takes only this many."""

LetterKey = tuple[int, int]
"""The transaction that has set a tuple aside, and the letter's number in it."""


class LetterSpout(Spout):
    """Plans transactions of dead letters only: the source's positions do not move.

    Letters are read from the table when a transaction is planned, under the topology's lease, and retried letters are
    skipped; so each is retried once, whoever requests it and how often. `keys` are the requested letters, None: all
    that are waiting when the first transaction is planned. With it, only one transaction may be in flight.

    Where messages are followed one by one, a letter is a message: it is read from the source once more.

    `given_back` are those whose transaction was committed without them: its attempts failed, and no tuple could be
    identified as the cause. They wait as before, and are not planned a second time.

    `runs` are those of the topology, newest first: by them bolts are found that have other ids today.
    """

    def __init__(
        self, topology: Topology, keys: Collection[LetterKey] | None = None, runs: Sequence[RunRecord] = ()
    ) -> None:
        self._topology, self._spout, self._keys, self._runs = topology, topology.spout, keys, runs
        self._planned: set[LetterKey] = set()
        self.given_back: set[LetterKey] = set()

    @property
    def has_ended(self) -> bool:
        """True: letters are there, or are not."""
        return True

    def plan(self, after: BatchMetadata, *, replay: bool) -> BatchMetadata | None:
        """The next letters; a transaction that was recorded before is planned by the spout itself."""
        if replay:
            return self._spout.plan(after, replay=True)
        waiting = letters_of(self._topology, self._keys, self._runs)
        if self._keys is None:  # one that fails again becomes a new letter, which this run does not retry
            self._keys = {letter.key for letter in waiting}
        waiting = [letter for letter in waiting if letter.key not in self.given_back][:LETTERS_PER_TRANSACTION]
        self._planned = {letter.key for letter in waiting}
        if not waiting:
            return None
        ranges = {partition: OffsetRange(offset, offset) for partition, offset in after.positions().items()}
        again = messages_of_letters(waiting) if self._topology.follows_messages else ()
        return BatchMetadata(ranges, metadata=after.metadata, letters=tuple(waiting), again=again)

    @property
    def can_limit_batches(self) -> bool:
        """True: they have a limit."""
        return True

    @property
    def batch_records_max(self) -> int:
        """`LETTERS_PER_TRANSACTION`, whatever `target_latency_ms` says."""
        return LETTERS_PER_TRANSACTION

    def limit_batches(self, limit: BatchLimit) -> None:
        """Letters have a fixed limit."""

    @property
    def output(self) -> Schema:
        """The spout's."""
        return self._spout.output

    @property
    def replays_exactly(self) -> bool:
        """The spout's."""
        return self._spout.replays_exactly

    @property
    def outputs(self) -> Mapping[str, Schema]:
        """The spout's."""
        return self._spout.outputs

    @property
    def kind(self) -> str:
        """Its own: the run is one of letters."""
        return type(self).__name__

    @property
    def streams(self) -> Sequence[str]:
        """The spout's."""
        return self._spout.streams

    def describe_parts(self, tasks: int) -> Sequence[Mapping[str, Any]]:
        """The spout's."""
        return self._spout.describe_parts(tasks)

    @property
    def event_times(self) -> Mapping[str, EventTime]:
        """The spout's."""
        return self._spout.event_times

    @property
    def sets_records_aside(self) -> bool:
        """The spout's."""
        return self._spout.sets_records_aside

    @property
    def is_acked(self) -> bool:
        """The spout's."""
        return self._spout.is_acked

    def ack_at_once(self) -> None:
        """Delegate to the spout."""
        self._spout.ack_at_once()

    def acknowledge(self, batch: BatchMetadata, failed: Sequence[FailedMessage]) -> None:
        """Delegate to the spout."""
        self._spout.acknowledge(batch, failed)

    def addresses(self) -> Mapping[str, SourceAddress]:
        """The spout's."""
        return self._spout.addresses()

    def read_held_ranges(self, partitions: Collection[PartitionId]) -> Mapping[PartitionId, OffsetRange | None]:
        """Delegate to the spout."""
        return self._spout.read_held_ranges(partitions)

    def copy_unopened(self) -> Self:
        """Over the spout apart."""
        apart = super().copy_unopened()
        apart._spout = self._spout.copy_unopened()
        return apart

    def identity(self) -> Mapping[str, str]:
        """The spout's."""
        return self._spout.identity()

    def open(self) -> None:
        """Open the spout."""
        self._spout.open()

    def check_replay(self, batch: BatchMetadata) -> None:
        """Delegate to the spout."""
        self._spout.check_replay(batch)

    def check_read(self, batch: BatchMetadata) -> None:
        """Delegate to the spout."""
        self._spout.check_read(batch)

    def reader(self) -> PartitionReader:
        """The spout's."""
        return self._spout.reader()

    def committed(self, batch: BatchMetadata) -> None:
        """Delegate to the spout."""
        self.given_back |= self._planned - {letter.key for letter in batch.letters}
        self._planned = set()
        self._spout.committed(batch)

    def lag(self, after: BatchMetadata) -> int | None:
        """Delegate to the spout."""
        return self._spout.lag(after)

    def lag_by_partition(self, after: BatchMetadata) -> Mapping[PartitionId, int] | None:
        """Delegate to the spout."""
        return self._spout.lag_by_partition(after)

    def list_partitions(self, after: BatchMetadata) -> Mapping[PartitionId, Listing]:
        """Delegate to the spout, which queries the source: letters are planned without it."""
        return self._spout.list_partitions(after)

    def close(self) -> None:
        """Close the spout."""
        self._spout.close()


def check_retries(topology: Topology, config: TopologyConfig) -> None:
    """Raise `ConfigError` if tuples are to be set aside, and no limit says after how many attempts."""
    exactly_once = topology.guarantee is Guarantee.EXACTLY_ONCE
    needed = "attempts_max" if exactly_once else "message_retries_max"
    if topology.dead_letters is not None and getattr(config, needed) is None:
        raise ConfigError(
            f"topology {topology.id!r} has a table of dead letters, but {needed} is not set, so that "
            f"failures would be retried forever: set {needed}=3, for example"
        )


def all_letters(topology: Topology) -> list[dict[str, Any]]:
    """The rows of the topology's table of dead letters, sorted. Raises `ConfigError` if it has none."""
    state = topology.dead_letters
    if state is None:
        raise ConfigError(f"topology {topology.id!r} keeps no dead letters: declare them with set_dead_letters(…)")
    rows: list[dict[str, Any]] = state.read().to_pylist()
    return sorted(rows, key=lambda row: (row["transaction"], row["number"]))


def letters_of(topology: Topology, keys: Collection[LetterKey] | None, runs: Sequence[RunRecord] = ()) -> list[Letter]:
    """The letters that were not retried yet, or the requested ones of them; for `runs` see `LetterSpout`.

    Raises `ConfigError` for a missing one, or one whose bolt the topology no longer has, or has several of.
    """
    rows = {(row["transaction"], row["number"]): row for row in all_letters(topology)}
    for key in keys or ():
        if key not in rows:
            raise ConfigError(f"there is no dead letter {key[0]}:{key[1]}; topology {topology.id!r} has {len(rows)}")
    waiting = [rows[key] for key in (rows if keys is None else sorted(keys)) if rows[key]["tried_again_in"] is None]
    known = Bolts(described(topology), runs)
    return [_letter(topology, row, known) for row in waiting]


def _letter(topology: Topology, row: Mapping[str, Any], known: Bolts) -> Letter:
    key, bolts = (row["transaction"], row["number"]), [component.id for component in topology.components]
    source, bolt = (known.today(row[name], key[0]) or "" for name in ("source", "component"))
    origin = current_origin(source, row["stream"], topology.spout_id, topology.spout.outputs, bolts)
    is_record = row["component"] == row["source"]
    component = origin[0] if is_record else bolt
    inputs = {component.id: [grouping.origin for grouping in component.inputs] for component in topology.components}
    inputs[topology.spout_id] = [(topology.spout_id, stream) for stream in topology.spout.outputs]
    if origin not in inputs.get(component, []):
        raise ConfigError(
            f"dead letter {key[0]}:{key[1]} came to {'spout' if is_record else 'bolt'} {row['component']!r} from "
            f"{row['source']!r}, stream {row['stream']!r}; topology {topology.id!r} no longer has such a subscription, "
            "or has several that it may be"
        )
    return Letter(*key, component, *origin, row["tuple"], row["error"])
