"""Runs a user's bolt over tuples that are followed: their ids, their roots, and the ledger of their task.

A tuple is emitted once and may be received several times, by several bolts, or by all tasks of one: each receives it
under an id of its own, computed from the one that it was emitted with. The bolts behind the spout enter its messages
into the ledger; a tree that does not leave its task needs no acker.
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
from transactional.topology.reliable.running import Out, RunningBolt, storable, unreadable
from transactional.topology.topology import HIDDEN, with_hidden

if TYPE_CHECKING:
    import pyarrow as pa

_COPY = 0x94D049BB133111EB


class Tracked(Tuple):
    """A tuple that is followed: whose it is, its id, its root, and its roots if it has several."""

    _tree: tuple[Any, int, int | None, list[int] | None]


def copy_id(id_: int, number: int) -> int:
    """The id under which the receiver with this number gets a tuple."""
    return id_ if number == 0 else to_signed((id_ ^ number * _COPY) * (2 * number + 1))


@dataclass(frozen=True, slots=True)
class Receiving:
    """How a bolt gets the tuples of one stream. `number` distinguishes it among the stream's receivers; if
    `is_per_task`, each of its tasks gets every tuple, and their numbers follow."""

    fields: tuple[str, ...]
    number: int = 0
    is_per_task: bool = False
    is_of_spout: bool = False


class TrackedBolt(RunningBolt):
    """A user's bolt in a topology that is at least once.

    `receivers` says, by stream, how many receive each of its tuples; `receiving`, by source and stream, how it receives
    those of others. `reports` is False if a bolt behind it in the same task reports the ledger that they share.
    """

    def __init__(self, component: str, bolt: Any, outputs: Mapping[str, Schema]) -> None:
        super().__init__(component, bolt, outputs)
        self.streams = {**self.streams, ACK_STREAM: ACK_FIELDS}  # type: ignore[misc]
        self.receivers: dict[str, int] = {}
        self.receiving: dict[tuple[str, str], Receiving] = {}
        self.reports = True

    @staticmethod
    def declared(schema: Schema) -> Schema:
        """With the hidden fields."""
        return with_hidden(schema) if schema else schema

    def begin(self, context: TopologyContext, attempt: TransactionAttempt) -> None:
        """Join the ledger of the task."""
        self.ledger: Ledger = context.shared.setdefault("ledger", Ledger())
        self.attempt, self.task = attempt, context.task_index
        # A task that Spark repeats gives the same ids, whatever the process.
        self._random = Random(f"{attempt}/{self.component}/{self.task}").getrandbits

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Give the bolt its tuples, one by one."""
        [origin] = self.receiving if len(self.receiving) == 1 else [origin_of(batch)]
        how, width = self.receiving[origin], len(batch.schema) - len(HIDDEN)
        ids, roots = (column.to_pylist() for column in batch.columns[width : width + 2])
        several = batch.column(width + 2)
        more = repeat(None, len(ids)) if several.null_count == len(ids) else several.to_pylist()
        number = how.number + (self.task if how.is_per_task else 0)
        if number:
            ids = [None if id_ is None else copy_id(id_, number) for id_ in ids]
        is_skipped = how.is_of_spout and self.acks_itself  # entered and acked at once
        if how.is_of_spout and not is_skipped:
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
        """Tuples with values that Python can't represent fail."""
        for values, tree in zip(rows, trees, strict=True):
            row = make(raw_values(values))
            row._tree = tree
            if isinstance(values, PartlyReadable):
                self.has_raised(row, unreadable(values))
            else:
                yield row

    # --- what the bolt calls ------------------------------------------------------------------------------------

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""
        out = self._default if stream is DEFAULT_STREAM else self.out(stream)
        if len(values) != out.width:
            out.refuse(values)
        if anchors.__class__.__base__ is Tracked:  # the usual case
            owner, _, root, more = anchors._tree  # type: ignore[union-attr]
            if owner is self and root is not None and more is None:
                copies = out.copies
                id_ = self._random(64) - 0x8000000000000000
                if copies:
                    ledger = self.ledger.values
                    ledger[root] = ledger.get(root, 0) ^ (id_ if copies == 1 else all_copies(id_, copies))
                out.take((*values, id_, root, None))
                return
        out.take((*values, *self._tied(self._roots(anchors), out.copies)))

    def hidden_of(self, anchors: Anchors) -> tuple[Any, ...]:
        """Its id and its roots."""
        return self._tied(self._roots(anchors), 1)

    def _tied(self, roots: Sequence[int], copies: int) -> tuple[int | None, int | None, list[int] | None]:
        """The hidden values of a tuple that belongs to these roots."""
        if not roots:
            return None, None, None
        id_ = self._random(64) - 0x8000000000000000
        value = all_copies(id_, copies)
        for root in roots:
            self.ledger.xor(root, value)
        return id_, roots[0], None if len(roots) == 1 else list(roots)

    def _roots(self, anchors: Anchors) -> list[int]:
        """The roots of all anchors, each once: a tuple that is tied to the same root twice belongs to it once."""
        if anchors is None:
            return []
        roots: set[int] = set()
        for anchor in [anchors] if isinstance(anchors, Tuple) else anchors:
            roots.update(self._tree(anchor, "anchored a tuple to")[1])
        return sorted(roots)

    def ack(self, tuple: Tuple) -> None:
        """The bolt is done with a tuple."""
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
            # Acked twice it would not be acked.
            tuple._tree = (self, 0, *tuple._tree[2:])  # type: ignore[attr-defined]

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """The tuple's messages have failed."""
        _, roots = self._tree(tuple, "failed")
        self.drop(tuple, storable(reason) or f"bolt {self.component!r} failed it", roots)

    def _tree(self, row: Any, what: str) -> tuple[int, Sequence[int]]:
        tree = getattr(row, "__dict__", {}).get("_tree")
        if tree is None or tree[0] is not self:
            self._not_its_own(row, what)
        _, id_, root, more = tree
        return id_ or 0, more or (() if root is None else (root,))

    def _not_its_own(self, row: Any, what: str) -> NoReturn:
        tree = getattr(row, "__dict__", {}).get("_tree")
        if not isinstance(row, Tuple) or tree is None:
            whose = f"{row!r}, which is not a tuple that it has received"
        elif tree[0].attempt != self.attempt:
            whose = f"a tuple of {row.source!r} of another batch ({tree[0].attempt}; this is {self.attempt})"
        else:
            whose = f"a tuple of {row.source!r} that bolt {tree[0].component!r} received, task {tree[0].task}"
        raise SchemaMismatch(f"bolt {self.component!r}, task {self.task}, {what} {whose}; a bolt may only use its own")

    # --- failures -----------------------------------------------------------------------------------------------

    def has_raised(self, row: Tuple | None, error: str) -> None:
        """`execute` has raised for a tuple, or `finish_batch` has."""
        if row is None:
            for root, value in self.ledger.values.items():
                if value:
                    self.ledger.fail(root, error)
        elif isinstance(row, Tracked):
            self.drop(row, error, self._tree(row, "failed")[1])

    def drop(self, row: Tuple | None, error: str, roots: Sequence[int] = ()) -> None:
        """A tuple has failed: with its roots, if it has any."""
        for root in roots:
            self.ledger.fail(root, error)
        if not roots:
            self.count_dropped(error)

    def refused(self, values: tuple[Any, ...], error: str) -> None:
        """Values that do not match their fields belong to messages, too."""
        _, root, more = values[-3:]
        self.drop(None, error, more or (() if root is None else (root,)))

    def finish_batch(self) -> None:
        """Finish the bolt; report the ledger."""
        super().finish_batch()
        rows = self.ledger.rows() if self.reports else []
        if rows:
            schema = arrow_schema(Schema.parse(ACK_FIELDS))
            for at in range(0, len(rows), Out.ROWS):
                batch = batch_from_rows(rows[at : at + Out.ROWS], schema, component=self.component)
                self.collector.emit_batch(batch, stream=ACK_STREAM)

    def copies_of(self, stream: str) -> int:
        """How many receive each tuple of a stream."""
        return self.receivers.get(stream, 0)


def all_copies(id_: int, copies: int) -> int:
    """What emitting a tuple adds to its roots: the ids under which it is received, XORed."""
    value = 0
    for number in range(copies):
        value ^= copy_id(id_, number)
    return value
