"""`TrackedBolt`: runs a user's bolt over tuples that are followed, with their ids, their roots, and the ledger of the
task.

A tuple is emitted once and may be received several times: by several bolts, or by all tasks of one. Each receives it
under an id of its own, computed from the emitted one. The bolts behind the spout enter its messages into the ledger. A
tree of tuples that does not leave its task needs no acker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn

from transactional.model.arrow import arrow_schema, batch_from_rows, origin_of
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import to_signed
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import PartlyReadable, Tuple, raw_values, tuple_class
from transactional.topology.bolts.bolts import TopologyContext
from transactional.topology.reliable.acker import ACK_FIELDS, ACK_STREAM, Ledger
from transactional.topology.reliable.bolts import Anchors
from transactional.topology.reliable.running import RunningBolt, StreamBuffer, storable_text, unreadable_text
from transactional.topology.topology import HIDDEN, with_hidden

if TYPE_CHECKING:
    import pyarrow as pa

_COPY = 0x94D049BB133111EB


class Tracked(Tuple):
    """A tuple that is followed: its owner, its id, its root, and all roots if it has several."""

    _tree: tuple[Any, int, int | None, list[int] | None]


def copy_id(id_: int, number: int) -> int:
    """Return the id under which the receiver with this number gets a tuple."""
    return id_ if number == 0 else to_signed((id_ ^ number * _COPY) * (2 * number + 1))


@dataclass(frozen=True, slots=True)
class Reception:
    """How a bolt receives the tuples of one stream. `number` is its number among the receivers of the stream.

    If `is_per_task`, each of its tasks gets every tuple, and the numbers of the tasks follow one another.
    """

    fields: tuple[str, ...]
    number: int = 0
    is_per_task: bool = False
    is_of_spout: bool = False


class TrackedBolt(RunningBolt):
    """A user's bolt in a topology that is at least once.

    `receivers` is the number of receivers of each stream. `receiving` says, by source and stream, how the bolt receives
    tuples of others. `reports` is False if a bolt behind it in the same task reports the ledger that they share.
    """

    def __init__(self, component: str, bolt: Any, outputs: Mapping[str, Schema]) -> None:
        super().__init__(component, bolt, outputs)
        self.streams = {**self.streams, ACK_STREAM: ACK_FIELDS}  # type: ignore[misc]
        self.receivers: dict[str, int] = {}
        self.receiving: dict[tuple[str, str], Reception] = {}
        self.reports = True

    @staticmethod
    def engine_schema(schema: Schema) -> Schema:
        return with_hidden(schema) if schema else schema

    def prepare_batch(self, context: TopologyContext, attempt: TransactionAttempt) -> None:
        """Share the ledger of the task."""
        self.ledger: Ledger = context.shared.setdefault("ledger", Ledger())
        self.attempt, self.task = attempt, context.task_index
        # A task that Spark repeats gives the same ids, whatever the process.
        self._random = Random(f"{attempt}/{self.component}/{self.task}").getrandbits

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        [origin] = self.receiving if len(self.receiving) == 1 else [origin_of(batch)]
        reception, width = self.receiving[origin], len(batch.schema) - len(HIDDEN)
        ids, roots = (column.to_pylist() for column in batch.columns[width : width + 2])
        several = batch.column(width + 2)
        more = repeat(None, len(ids)) if several.null_count == len(ids) else several.to_pylist()
        number = reception.number + (self.task if reception.is_per_task else 0)
        if number:
            ids = [None if id_ is None else copy_id(id_, number) for id_ in ids]
        is_skipped = reception.is_of_spout and self.acks_itself  # entered and acked at once
        if reception.is_of_spout and not is_skipped:
            xor = self.ledger.xor
            for id_, root in zip(ids, roots, strict=True):
                if root is not None:
                    xor(root, id_)
        if is_skipped:
            ids = [0] * len(ids)
        trees = zip(repeat(self), ids, roots, more)
        self.run_all(self._rows(batch.select(range(width)), origin, trees))

    def _rows(self, batch: pa.RecordBatch, origin: tuple[str, str], trees: Iterable[Any]) -> Iterator[Tuple]:
        make = tuple_class(tuple(batch.schema.names), *origin, Tracked)
        try:
            rows: Iterator[Any] = map(make, zip(*(column.to_pylist() for column in batch.columns), strict=True))
        except (ValueError, OverflowError):
            yield from self._readable(tuples(batch, *origin), make, trees)
            return
        for row, tree in zip(rows, trees, strict=True):
            row._tree = tree
            yield row

    def _readable(self, rows: Iterable[Tuple], make: Callable[..., Any], trees: Iterable[Any]) -> Iterator[Tuple]:
        """Yield tuples, and fail those with values that Python can't represent."""
        for values, tree in zip(rows, trees, strict=True):
            row = make(raw_values(values))
            row._tree = tree
            if isinstance(values, PartlyReadable):
                self.has_raised(row, unreadable_text(values))
            else:
                yield row

    # --- what the bolt calls ------------------------------------------------------------------------------------

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        stream_buffer = self._default if stream is DEFAULT_STREAM else self.buffer(stream)
        if len(values) != stream_buffer.width:
            stream_buffer.refuse(values)
        if anchors.__class__.__base__ is Tracked:  # the usual case
            owner, _, root, more = anchors._tree  # type: ignore[union-attr]
            if owner is self and root is not None and more is None:
                copies = stream_buffer.copies
                id_ = self._random(64) - 0x8000000000000000
                if copies:
                    ledger = self.ledger.values
                    ledger[root] = ledger.get(root, 0) ^ (id_ if copies == 1 else all_copies(id_, copies))
                stream_buffer.take((*values, id_, root, None))
                return
        stream_buffer.take((*values, *self._hidden_values(self._roots(anchors), stream_buffer.copies)))

    def hidden_of(self, anchors: Anchors) -> tuple[Any, ...]:
        return self._hidden_values(self._roots(anchors), 1)

    def _hidden_values(self, roots: Sequence[int], copies: int) -> tuple[int | None, int | None, list[int] | None]:
        """Return the hidden values of a new tuple that belongs to these roots."""
        if not roots:
            return None, None, None
        id_ = self._random(64) - 0x8000000000000000
        ids = all_copies(id_, copies)
        for root in roots:
            self.ledger.xor(root, ids)
        return id_, roots[0], None if len(roots) == 1 else list(roots)

    def _roots(self, anchors: Anchors) -> list[int]:
        """Return the roots of all anchors, each once: a tuple that is tied to a root twice belongs to it once."""
        if anchors is None:
            return []
        roots: set[int] = set()
        for anchor in [anchors] if isinstance(anchors, Tuple) else anchors:
            roots.update(self._tree(anchor, "anchored a tuple to")[1])
        return sorted(roots)

    def ack(self, tuple: Tuple) -> None:
        if tuple.__class__.__base__ is Tracked:  # the usual case, without a call
            owner, id_, root, more = tuple._tree
            if owner is self and more is None and root is not None:
                values = self.ledger.values
                values[root] = values.get(root, 0) ^ id_
                tuple._tree = (self, 0, root, None)  # type: ignore[attr-defined]
                return
        id_, roots = self._tree(tuple, "acked")
        if id_:
            for root in roots:
                self.ledger.xor(root, id_)
            # A second XOR with the id would undo the first.
            tuple._tree = (self, 0, *tuple._tree[2:])  # type: ignore[attr-defined]

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        _, roots = self._tree(tuple, "failed")
        self.drop(tuple, storable_text(reason) or f"bolt {self.component!r} failed it", roots)

    def _tree(self, row: Any, action: str) -> tuple[int, Sequence[int]]:
        tree = getattr(row, "__dict__", {}).get("_tree")
        if tree is None or tree[0] is not self:
            self._refuse_foreign(row, action)
        _, id_, root, more = tree
        return id_ or 0, more or (() if root is None else (root,))

    def _refuse_foreign(self, row: Any, action: str) -> NoReturn:
        tree = getattr(row, "__dict__", {}).get("_tree")
        if not isinstance(row, Tuple) or tree is None:
            owner_text = f"{row!r}, which is not a tuple that it has received"
        elif tree[0].attempt != self.attempt:
            owner_text = f"a tuple of {row.source!r} of another batch ({tree[0].attempt}; this is {self.attempt})"
        else:
            owner_text = f"a tuple of {row.source!r} that bolt {tree[0].component!r} received, task {tree[0].task}"
        raise SchemaMismatch(
            f"bolt {self.component!r}, task {self.task}, {action} {owner_text}; a bolt may only use its own"
        )

    # --- failures -----------------------------------------------------------------------------------------------

    def has_raised(self, row: Tuple | None, error: str) -> None:
        if row is None:
            for root, xor in self.ledger.values.items():
                if xor:
                    self.ledger.fail(root, error)
        elif isinstance(row, Tracked):
            self.drop(row, error, self._tree(row, "failed")[1])

    def drop(self, row: Tuple | None, error: str, roots: Sequence[int] = ()) -> None:
        """Fail a tuple with its roots, if it has any."""
        for root in roots:
            self.ledger.fail(root, error)
        if not roots:
            self.count_dropped(error)

    def refused(self, values: tuple[Any, ...], error: str) -> None:
        _, root, more = values[-3:]
        self.drop(None, error, more or (() if root is None else (root,)))

    def finish_batch(self) -> None:
        """Finish the bolt, and report the ledger."""
        super().finish_batch()
        rows = self.ledger.rows() if self.reports else []
        if rows:
            schema = arrow_schema(Schema.parse(ACK_FIELDS))
            for start in range(0, len(rows), StreamBuffer.ROWS):
                batch = batch_from_rows(rows[start : start + StreamBuffer.ROWS], schema, component=self.component)
                self.collector.emit_batch(batch, stream=ACK_STREAM)

    def copies_of(self, stream: str) -> int:
        return self.receivers.get(stream, 0)


def all_copies(id_: int, copies: int) -> int:
    """Return what emitting a tuple adds to its roots: the ids under which it is received, XORed."""
    ids = 0
    for number in range(copies):
        ids ^= copy_id(id_, number)
    return ids
