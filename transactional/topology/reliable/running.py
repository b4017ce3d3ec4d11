"""`RunningBolt`: runs a user's bolt tuple by tuple, where a tuple that fails must not fail its batch.

It is the base of the bolts of topologies that are at least once or at most once. It collects what the bolt emits, and
turns exceptions into failures of single tuples.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NoReturn

import pyarrow as pa

from transactional.core.ports import Sink
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
from transactional.topology.reliable.sending_bolt import SendingBolt


class StreamBuffer:
    """One stream of a running bolt: collects tuples into record batches."""

    ROWS: ClassVar = 10_000

    def __init__(self, name: str, fields: Schema, schema: Schema, owner: RunningBolt) -> None:
        self.name, self.width, self.owner = name, len(fields), owner
        self.schema, self.copies = arrow_schema(schema), owner.copies_of(name)
        self._fields = self.schema if len(fields) == len(schema) else arrow_schema(fields)
        # The values of all tuples, one tuple behind the other.
        self.values, self.values_max = list[Any](), self.ROWS * len(self.schema)

    def take(self, row: tuple[object, ...]) -> None:
        """Add a tuple, and emit a batch once there are enough."""
        values = self.values
        values += row
        if len(values) >= self.values_max:
            self.flush()

    def flush(self) -> None:
        """Emit the collected tuples. Tuples whose values do not match the fields fail, alone."""
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
        """Raise `SchemaMismatch` for a tuple with more values than fields, or fewer."""
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
        declared = {stream: str(self.engine_schema(schema)) for stream, schema in outputs.items()}
        self.output = declared.pop(DEFAULT_STREAM)  # type: ignore[misc]
        self.streams = declared  # type: ignore[misc]
        self.origins: list[tuple[str, str]] = []
        """The sources and streams of its inputs."""
        self.direct: dict[str, dict[str, int]] = {}
        """The bolts that can be emitted to directly, with their tasks, by stream."""

    @staticmethod
    def engine_schema(schema: Schema) -> Schema:
        """Return the fields of a stream as the engine has them: the bolt's, and any hidden ones."""
        return schema

    @property
    def kind(self) -> str:
        """The kind of the bolt, as `describe` shows it."""
        is_function = isinstance(self.bolt, BoltFunction)
        if isinstance(self.bolt, SendingBolt):
            return str(self.bolt.sink.kind)
        return "function of a Tuple" if is_function else type(self.bolt).__name__

    @property
    def sink(self) -> Sink | None:
        return self.bolt.sink if isinstance(self.bolt, SendingBolt) else None

    @property
    def acks_itself(self) -> bool:
        """True for a bolt that is acked by the framework once it has executed a tuple."""
        return not isinstance(self.bolt, RichBolt)

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        self.collector = collector
        self.dropped, self.reason = 0, ""
        self._buffers = {
            stream: StreamBuffer(stream, fields, self.engine_schema(fields), self)
            for stream, fields in self.fields.items()
        }
        self._default = self._buffers[DEFAULT_STREAM]
        self.prepare_batch(context, attempt)
        self._work: Callable[[Tuple], None]
        if isinstance(self.bolt, RichBolt):
            self._work = self.bolt.execute
            self.bolt.prepare(context, self)
        elif isinstance(self.bolt, BasicBolt):
            self.bolt.prepare(context)
            self._work = self._execute_basic
        else:
            self._work = self._call
        self._anchored = AnchoringCollector(self)

    def prepare_batch(self, context: TopologyContext, attempt: TransactionAttempt) -> None:
        """Prepare for an attempt. Called before the bolt is prepared."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Execute the bolt with each tuple of a batch."""
        raise NotImplementedError

    def run_all(self, rows: Iterable[Tuple]) -> None:
        """Execute the bolt with each tuple, and continue after one that it fails on."""
        work, acks = self._work, self.acks_itself
        for row in rows:
            try:
                work(row)
                if acks:
                    self.ack(row)
            except (TaskFailed, NaiveTime):
                raise
            except BaseException as error:
                self.has_raised(row, failure_text(self.component, error))

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
        """Finish the bolt, and emit what is collected."""
        if isinstance(self.bolt, RichBolt):
            try:
                self.bolt.finish_batch()
            except (TaskFailed, NaiveTime):
                raise
            except BaseException as error:
                self.has_raised(None, failure_text(self.component, error))
        for stream_buffer in self._buffers.values():
            stream_buffer.flush()

    def unfinished(self) -> Unfinished:
        return Unfinished(dropped=self.dropped, reason=self.reason)

    def count_dropped(self, error: str) -> None:
        """Count a failed tuple that belongs to no message that is followed."""
        self.dropped += 1
        self.reason = self.reason or error

    def buffer(self, stream: str) -> StreamBuffer:
        """Return the buffer of a stream. Raises `SchemaMismatch` if the bolt does not declare it."""
        stream_buffer = self._buffers.get(stream)
        if stream_buffer is None:
            names = list(self._buffers)
            raise SchemaMismatch(
                f"{self.component!r} emitted on stream {stream!r}; the streams that it declares are: "
                f"{', '.join(names)}{did_you_mean(str(stream), names)}"
            )
        return stream_buffer

    def check_direct(self, component: str, task: int, stream: str) -> None:
        """Raise `SchemaMismatch` unless a tuple can be emitted to this task."""
        count = self.direct.get(stream, {}).get(component)
        if count is None or type(task) is not int or not 0 <= task < count:
            raise SchemaMismatch(
                f"{self.component!r} emitted directly to task {task!r} of {component!r} on stream {stream!r}; it can "
                f"emit to {self.direct.get(stream, {}) or 'no bolt'} (bolts with direct_grouping: tasks)"
            )

    def copies_of(self, stream: str) -> int:
        """Return how many receivers each tuple of a stream has. It is 0 where tuples are not followed."""
        return 0

    @abstractmethod
    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple, which belongs to the messages of its anchors."""

    def emit_direct(
        self, component: str, task: int, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Emit a tuple to one task of a component."""
        stream_buffer = self.buffer(stream)
        if len(values) != stream_buffer.width:
            stream_buffer.refuse(values)
        stream_buffer.check(values)
        self.check_direct(component, task, stream)
        self.collector.emit_direct(component, task, *values, *self.hidden_of(anchors), stream=stream)

    def hidden_of(self, _anchors: Anchors) -> tuple[Any, ...]:
        """Return the hidden values of a tuple that one task receives; none where tuples are not followed."""
        return ()

    @abstractmethod
    def ack(self, tuple: Tuple) -> None:
        """Record that the bolt is done with a tuple."""

    @abstractmethod
    def fail(self, tuple: Tuple, reason: str = "") -> None:
        """Record that a tuple has failed, with its messages."""

    @abstractmethod
    def has_raised(self, row: Tuple | None, error: str) -> None:
        """Handle an exception of `execute` for a tuple, or of `finish_batch` if there is no row."""

    @abstractmethod
    def refused(self, values: tuple[object, ...], error: str) -> None:
        """Handle an emitted tuple whose values do not match the fields. `values` ends with the hidden values, if it has
        any."""


class UntrackedBolt(RunningBolt):
    """A user's bolt in a topology whose messages are not followed: failed tuples are counted and dropped."""

    def execute_batch(self, batch: pa.RecordBatch) -> None:
        [origin] = self.origins if len(self.origins) == 1 else [origin_of(batch)]
        self.run_all(self._readable(tuples(batch, *origin)))

    def _readable(self, rows: Iterable[Tuple]) -> Iterator[Tuple]:
        for row in rows:
            if isinstance(row, PartlyReadable):
                self.count_dropped(unreadable_text(row))
            else:
                yield row

    def emit(self, *values: object, anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> None:
        stream_buffer = self._default if stream is DEFAULT_STREAM else self.buffer(stream)
        if len(values) != stream_buffer.width:
            stream_buffer.refuse(values)
        stream_buffer.take(values)

    def ack(self, tuple: Tuple) -> None: ...

    def fail(self, tuple: Tuple, reason: str = "") -> None:
        self.count_dropped(storable_text(reason) or f"bolt {self.component!r} failed it")

    def has_raised(self, row: Tuple | None, error: str) -> None:
        self.count_dropped(error)

    def refused(self, values: tuple[object, ...], error: str) -> None:
        self.count_dropped(error)


class AnchoringCollector:
    """The collector of a `BasicBolt`: it anchors every tuple to the one that the bolt is executing."""

    def __init__(self, bolt: RunningBolt) -> None:
        self._bolt, self._emit = bolt, bolt.emit
        self.to: Tuple | None = None

    def emit(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple, with a value for each field."""
        self._emit(*values, anchors=self.to, stream=stream)

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit the rows of a record batch as tuples."""
        names = self._bolt.buffer(stream).schema.names[: self._bolt.buffer(stream).width]
        for values in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            self._emit(*values, anchors=self.to, stream=stream)

    def emit_direct(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit a tuple to one task of a component."""
        self._bolt.emit_direct(component, task, *values, anchors=self.to, stream=stream)


def failure_text(component: str, error: BaseException) -> str:
    """Return the reason for which a tuple has failed. The text of a `FailedException` is used as it is."""
    try:
        text = storable_text(error)
    except Exception:
        text = "its text can't be read"
    if isinstance(error, FailedException):
        return text or f"bolt {component!r} raised FailedException"
    return f"bolt {component!r} raised {type(error).__name__}: {text}"


def storable_text(reason: object) -> str:
    """Return text that every table accepts: half a surrogate pair is escaped."""
    return str(reason).encode("utf-8", "backslashreplace").decode()


def unreadable_text(row: Tuple) -> str:
    """Return the reason for which a tuple fails that no bolt can be given."""
    return f"a tuple of {row.source!r} has a time outside the years 1 to 9999, which Python can't represent"
