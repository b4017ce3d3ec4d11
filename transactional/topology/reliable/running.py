"""Runs a user's bolt tuple by tuple where one that fails must not fail its batch: `RunningBolt`; and what it emits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from transactional.model.arrow import arrow_schema, batch_from_rows, batch_from_values, origin_of
from transactional.model.arrow.batch_tuples import tuples
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import FailedException, NaiveTime, SchemaMismatch
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.messages import Unfinished
from transactional.model.schema import Schema, did_you_mean
from transactional.model.user_code.failures import TaskFailed
from transactional.model.user_code.tuples import PartlyReadable, Tuple
from transactional.topology.bolts.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.topology.bolts.following_bolt import FollowingBolt
from transactional.topology.bolts.functions import BoltFunction
from transactional.topology.reliable.bolts import Anchors, RichBolt


class Out:
    """One stream of a running bolt: collects tuples into record batches."""

    ROWS: ClassVar = 10_000

    def __init__(self, name: str, fields: Schema, schema: Schema, owner: RunningBolt) -> None:
        self.name, self.width, self.owner = name, len(fields), owner
        self.schema, self.copies = arrow_schema(schema), owner.copies_of(name)
        self._fields = self.schema if len(fields) == len(schema) else arrow_schema(fields)
        # Of all tuples one behind the other.
        self.values, self.values_max = list[Any](), self.ROWS * len(self.schema)

    def take(self, row: tuple[object, ...]) -> None:
        """Take one tuple."""
        values = self.values
        values += row
        if len(values) >= self.values_max:
            self.flush()

    def flush(self) -> None:
        """Pass on what was taken. Tuples whose values do not match the fields fail, alone."""
        values, self.values = self.values, []
        if not values:
            return
        component = self.owner.component
        try:
            batch = batch_from_values(values, self.schema, component=component)
        except SchemaMismatch:
            rows = zip(*[iter(values)] * len(self.schema), strict=True)
            batch = batch_from_rows([row for row in rows if self._matches(row)], self.schema, component=component)
        self.owner.collector.emit_batch(batch, stream=self.name)

    def _matches(self, row: tuple[object, ...]) -> bool:
        try:
            self.check(row[: self.width])
        except SchemaMismatch as error:
            self.owner.refused(row, str(error))
            return False
        return True

    def check(self, values: tuple[object, ...]) -> None:
        """Raise `SchemaMismatch` for values that do not match the fields."""
        batch_from_rows([values], self._fields, component=self.owner.component)

    def refuse(self, values: tuple[object, ...]) -> NoReturn:
        """There are more values than fields, or fewer."""
        names = self.schema.names[: self.width]
        raise SchemaMismatch(
            f"{self.owner.component!r} declares the fields {names} for stream {self.name!r} and emitted "
            f"{len(values)} values"
        )


class RunningBolt(FollowingBolt):
    """A user's `bolt` in a topology without exactly once: a `RichBolt`, a `BasicBolt` or a function of a `Tuple`.

    An exception of the bolt is a failure of its tuple, and of nothing else.
    """

    def __init__(self, component: str, bolt: Any, outputs: Mapping[str, Schema]) -> None:
        self.component, self.bolt, self.fields = component, bolt, dict(outputs)
        declared = {stream: str(self.declared(schema)) for stream, schema in outputs.items()}
        self.output = declared.pop(DEFAULT_STREAM)  # type: ignore[misc]
        self.streams = declared  # type: ignore[misc]
        self.origins: list[tuple[str, str]] = []
        """The sources and streams of its inputs."""
        self.direct: dict[str, dict[str, int]] = {}
        """The bolts that can be emitted to directly, with their tasks, by stream."""

    @staticmethod
    def declared(schema: Schema) -> Schema:
        """What a stream of the bolt has, as the engine knows it."""
        return schema

    @property
    def kind(self) -> str:
        """What the bolt is to those who look at the topology."""
        is_function = isinstance(self.bolt, BoltFunction)
        return "function of a Tuple" if is_function else type(self.bolt).__name__

    @property
    def acks_itself(self) -> bool:
        """False for a bolt that is acked once it has executed a tuple."""
        return not isinstance(self.bolt, RichBolt)

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Prepare the bolt."""
        self.collector = collector
        self.dropped, self.reason = 0, ""
        self._outs = {
            stream: Out(stream, fields, self.declared(fields), self) for stream, fields in self.fields.items()
        }
        self._default = self._outs[DEFAULT_STREAM]
        self.begin(context, attempt)
        self._work: Callable[[Tuple], None]
        if isinstance(self.bolt, RichBolt):
            self._work = self.bolt.execute
            self.bolt.prepare(context, self)
        elif isinstance(self.bolt, BasicBolt):
            self.bolt.prepare(context)
            self._work = self._execute_basic
        else:
            self._work = self._call
        self._anchored = Anchored(self)

    def begin(self, context: TopologyContext, attempt: TransactionAttempt) -> None:
        """Called before the bolt is prepared."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Give the bolt its tuples, one by one."""
        raise NotImplementedError

    def run_all(self, rows: Iterable[Tuple]) -> None:
        """Give the bolt tuples, and continue after one that it fails on."""
        work, acks = self._work, self.acks_itself
        for row in rows:
            try:
                work(row)
                if acks:
                    self.ack(row)
            except (TaskFailed, NaiveTime):
                raise
            except BaseException as error:
                self.has_raised(row, told(self.component, error))

    def _execute_basic(self, row: Tuple) -> None:
        self._anchored.to = row
        self.bolt.execute(row, self._anchored)

    def _call(self, row: Tuple) -> None:
        self._anchored.to = row
        returned = self.bolt.function(row)
        if isinstance(returned, tuple):
            self._anchored.emit(*returned)
        elif returned is not None:
            for values in returned:
                self._anchored.emit(*values)

    def finish_batch(self) -> None:
        """Finish the bolt, and pass on what it has emitted."""
        if isinstance(self.bolt, RichBolt):
            try:
                self.bolt.finish_batch()
            except (TaskFailed, NaiveTime):
                raise
            except BaseException as error:
                self.has_raised(None, told(self.component, error))
        for out in self._outs.values():
            out.flush()

    def unfinished(self) -> Unfinished:
        """What was dropped."""
        return Unfinished(dropped=self.dropped, reason=self.reason)

    def count_dropped(self, error: str) -> None:
        """A tuple has failed that belongs to no message that is followed."""
        self.dropped += 1
        self.reason = self.reason or error

    def out(self, stream: str) -> Out:
        """One of its streams. Raises `SchemaMismatch`."""
        found = self._outs.get(stream)
        if found is None:
            known = list(self._outs)
            raise SchemaMismatch(
                f"{self.component!r} emitted on stream {stream!r}; the streams that it declares are: "
                f"{', '.join(known)}{did_you_mean(str(stream), known)}"
            )
        return found

    def check_direct(self, component: str, task: int, stream: str) -> None:
        """Raise `SchemaMismatch` unless a tuple can be emitted to this task."""
        count = self.direct.get(stream, {}).get(component)
        if count is None or type(task) is not int or not 0 <= task < count:
            raise SchemaMismatch(
                f"{self.component!r} emitted directly to task {task!r} of {component!r} on stream {stream!r}; it can "
                f"emit to {self.direct.get(stream, {}) or 'no bolt'} (bolts with direct_grouping: tasks)"
            )

    def copies_of(self, stream: str) -> int:
        """How many receive each tuple of a stream; only known where tuples are followed."""
        return 0

    @abstractmethod
    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""

    def emit_direct(
        self, component: str, task: int, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit one tuple to one task."""
        out = self.out(stream)
        if len(values) != out.width:
            out.refuse(values)
        out.check(values)
        self.check_direct(component, task, stream)
        self.collector.emit_direct(component, task, *values, *self.hidden_of(anchors), stream=stream)

    def hidden_of(self, _anchors: Anchors) -> tuple[Any, ...]:
        """The hidden values of a tuple that one task receives; only where tuples are followed."""
        return ()

    @abstractmethod
    def ack(self, tuple: Tuple) -> None:
        """The bolt is done with a tuple."""

    @abstractmethod
    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """A tuple has failed."""

    @abstractmethod
    def has_raised(self, row: Tuple | None, error: str) -> None:
        """`execute` has raised for a tuple, or `finish_batch` has."""

    @abstractmethod
    def refused(self, values: tuple[object, ...], error: str) -> None:
        """A tuple was emitted whose values do not match their fields; they come with the hidden ones, if there are."""


class UntrackedBolt(RunningBolt):
    """A user's bolt in a topology whose messages are not followed: what fails is counted, and gone."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Give the bolt its tuples, one by one."""
        [origin] = self.origins if len(self.origins) == 1 else [origin_of(batch)]
        self.run_all(self._readable(tuples(batch, *origin)))

    def _readable(self, rows: Iterable[Tuple]) -> Iterator[Tuple]:
        for row in rows:
            if isinstance(row, PartlyReadable):
                self.count_dropped(unreadable(row))
            else:
                yield row

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple; what it is anchored to makes no difference."""
        out = self._default if stream is DEFAULT_STREAM else self.out(stream)
        if len(values) != out.width:
            out.refuse(values)
        out.take(values)

    def ack(self, tuple: Tuple) -> None:
        """Makes no difference."""

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """Count it."""
        self.count_dropped(storable(reason) or f"bolt {self.component!r} failed it")

    def has_raised(self, row: Tuple | None, error: str) -> None:
        """Count it."""
        self.count_dropped(error)

    def refused(self, values: tuple[object, ...], error: str) -> None:
        """Count it."""
        self.count_dropped(error)


class Anchored:
    """What a `BasicBolt` emits to: everything is anchored to the tuple that it is executing."""

    def __init__(self, bolt: RunningBolt) -> None:
        self._bolt, self._emit = bolt, bolt.emit
        self.to: Tuple | None = None

    def emit(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple."""
        self._emit(*values, anchors=self.to, stream=stream)

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit many tuples."""
        names = self._bolt.out(stream).schema.names[: self._bolt.out(stream).width]
        for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            self._emit(*values, anchors=self.to, stream=stream)

    def emit_direct(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to one task."""
        self._bolt.emit_direct(component, task, *values, anchors=self.to, stream=stream)


def told(component: str, error: BaseException) -> str:
    """Why a tuple has failed. What a bolt says by `FailedException` needs no more words."""
    try:
        said = storable(error)
    except Exception:
        said = "its text can't be read"
    if isinstance(error, FailedException):
        return said or f"bolt {component!r} raised FailedException"
    return f"bolt {component!r} raised {type(error).__name__}: {said}"


def storable(reason: object) -> str:
    """What a bolt says, as text that every table takes: half a surrogate pair is none."""
    return str(reason).encode("utf-8", "backslashreplace").decode()


def unreadable(row: Tuple) -> str:
    """Why a tuple fails that no bolt can be given."""
    return f"a tuple of {row.source!r} has a time outside the years 1 to 9999, which Python can't represent"
