"""The kinds of bolt that a user writes: per tuple, per batch, on Arrow data; and the objects passed to them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, SupportsIndex

from transactional.attempt import TransactionAttempt
from transactional.errors import ConfigError, SchemaMismatch
from transactional.facts import BatchFacts
from transactional.groupings import DEFAULT_STREAM
from transactional.schema import did_you_mean
from transactional.storm_names import IN_BOLTS, NamesOfMetrics, StormNames, check_names

if TYPE_CHECKING:
    import pyarrow as pa

    from transactional.reading import Lookups

Key = tuple[Any, ...]
"""The values of a state's key columns, in order."""
COUNTERS_MAX: Final = 100
"""How many counters a component may have: each of them is a time series for as long as a run lasts."""
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,63}")


class Tuple(tuple[Any, ...]):
    """One tuple of a stream: values by position, by field name (`t["word"]`), or as attributes (`t.word`).

    `fields` are the names of its values, `source` is the id of the component that emitted it, `stream` the name of the
    stream it was emitted on. A field is not an attribute if its name is taken, as `count` and `index` are by Python's
    tuples and `values` is here, or if it begins with an underscore: use `t["count"]`. Two of them are equal if fields,
    values, source and stream are; any other tuple is compared with the values only.
    """

    __slots__ = ()
    __match_args__ = ("fields", "values", "source", "stream")
    fields: ClassVar[tuple[str, ...]] = ()
    source: ClassVar[str] = ""
    stream: ClassVar[str] = DEFAULT_STREAM
    _attribute_of: ClassVar[Mapping[str | int, str]] = {}
    """Where each value is, by field and by position."""
    _base: ClassVar[type[Tuple]]

    def __new__(cls, fields: Iterable[str], values: Iterable[Any], source: str, stream: str = DEFAULT_STREAM) -> Self:
        """Create one; `tuple_class` creates many of one stream."""
        made: Self = tuple_class(tuple(fields), source, stream, cls)(values)
        return made

    @property
    def values(self) -> tuple[Any, ...]:
        """The values, in order."""
        return tuple(self)

    def as_dict(self) -> dict[str, Any]:
        """Field name to value."""
        return dict(zip(self.fields, self, strict=True))

    def __getitem__(self, field: Any) -> Any:
        if field.__class__ is str or field.__class__ is int:
            try:
                return getattr(self, self._attribute_of[field])  # twice as fast as calling `tuple.__getitem__`
            except KeyError:
                pass
        if isinstance(field, slice | SupportsIndex):
            return tuple.__getitem__(self, field)
        raise KeyError(self._no_field(field))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._no_field(name))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Tuple) and self._described() != other._described():
            return False
        return tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        fields, source, stream = self._described()
        name = self._base.__name__
        return f"{name}(fields={fields!r}, values={self._held()!r}, source={source!r}, stream={stream!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return self._base, (self.fields, self._held(), self.source, self.stream)

    def _held(self) -> tuple[Any, ...]:
        """The values as they are, which a subclass may return differently."""
        return tuple(tuple.__iter__(self))

    def _described(self) -> tuple[Any, ...]:
        return self.fields, self.source, self.stream

    def _no_field(self, field: object) -> str:
        hint = did_you_mean(field, self.fields) if isinstance(field, str) else ""
        if isinstance(field, str) and field.startswith("get") and field in IN_BOLTS:
            hint = f"; here it is {IN_BOLTS[field]}"
        return f"the tuple has no field {field!r}; its fields are {', '.join(self.fields)}{hint}"

    @classmethod
    def _value_at(cls, place: int) -> Any:
        """A descriptor."""
        return _descriptor(place)


@cache
def _descriptor(place: int) -> Any:
    """A named tuple's descriptor for the field at a position: it gets the value in C."""
    return vars(namedtuple("Values", [f"at_{number}" for number in range(place + 1)]))[f"at_{place}"]


Tuple._base = Tuple


def tuple_class(
    fields: tuple[str, ...], source: str, stream: str, base: type[Tuple] = Tuple
) -> Callable[[Iterable[Any]], Any]:
    """The class of the tuples of one stream, created once, and called with only the values: as fast as a plain
    tuple."""
    return _made(fields, source, stream, base)


@lru_cache(1_024)
def _made(fields: tuple[str, ...], source: str, stream: str, base: type[Tuple]) -> type[Tuple]:
    taken = set(dir(base))
    attribute_of: dict[str | int, str] = {}
    members: dict[str, Any] = {"fields": fields, "source": source, "stream": stream, "_base": base}
    for place, name in enumerate(fields):
        is_hidden = name in taken or name in members or name.startswith("_")
        attribute = f"_{place}" if is_hidden else name
        members[attribute] = base._value_at(place)
        attribute_of.setdefault(name, attribute)
        attribute_of[place] = attribute_of[place - len(fields)] = attribute
    return type(
        base.__name__, (base,), {"__slots__": (), "__new__": tuple.__new__, "_attribute_of": attribute_of, **members}
    )


class OutputCollector(Protocol):
    """Receives what a bolt emits, on its default stream or another one declared in `streams`."""

    def emit(self, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple: a value for each field of the stream, in order."""

    def emit_batch(self, batch: pa.RecordBatch | pa.Table, *, stream: str = DEFAULT_STREAM) -> None:
        """Emit many tuples at once, as Arrow columns named like the stream's fields."""

    def emit_direct(self, component: str, task: int, *values: object, stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple to one task, counted from 0, of a bolt that has subscribed with `direct_grouping`."""


class MapState(Protocol):
    """Key → values, as a committer bolt sees its state in `finish_batch`.

    Reads return the state before this transaction, plus what this attempt has put. Puts become visible with the
    transaction commit, all or none of them. A timestamp without a time zone is in UTC.
    """

    def get(self, *key: object) -> Any:
        """The value of one key: None if it does not exist, a tuple if the state has several value columns.

        `get("a", 1)` and `get(("a", 1))` read the same key.
        """

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """The values of several keys, in order, read at once."""

    def put(self, key: object, value: object) -> None:
        """Set the value of one key."""

    def delete(self, *key: object) -> None:
        """Delete one key, whether or not it exists. The state needs `deletes=True`."""

    def multi_update(self, keys: Sequence[Key], update: Callable[[Any], Any]) -> list[Any]:
        """Set each key to `update(its value)`; return the new values."""


class BoltCounter:
    """A number of a bolt's that only grows."""

    __slots__ = ("_metrics", "_name")

    def __init__(self, metrics: BoltMetrics, name: str) -> None:
        self._metrics, self._name = metrics, name

    def increment(self, by: int = 1) -> None:
        """Add to it. Raises `ConfigError` for what is no whole number, or negative."""
        if not _is_growth(by):
            raise ConfigError(
                f"{self._metrics.component!r} increments its counter {self._name!r} by {by!r}; a counter only "
                "grows, by whole numbers"
            )
        self._metrics.counts[self._name] += by


class BoltMetrics(NamesOfMetrics):
    """The counters of a bolt in one task of one attempt.

    What is counted until `finish_batch` returns counts with the transaction commit. What a failed attempt has counted
    is dropped.
    """

    def __init__(self, component: str = "") -> None:
        self.component = component
        self.counts = Counter[str]()

    def counter(self, name: str) -> BoltCounter:
        """The counter of this name, which begins at 0. A name is a word of the program, not a value of the data.

        Raises `ConfigError` for a name that is not a letter and then at most 63 letters, digits, `_`, `.` and `-`, and
        for more than 100 names.
        """
        if not _is_name(name):
            raise ConfigError(
                f"{self.component!r} has a counter {name!r}; a name is a letter and then at most 63 letters, digits, "
                "'_', '.' and '-'"
            )
        if name not in self.counts and len(self.counts) == COUNTERS_MAX:
            raise ConfigError(
                f"{self.component!r} has more than {COUNTERS_MAX} counters, the last one {name!r}; a name is a word of "
                "the program: put values of the data into a state instead"
            )
        self.counts.setdefault(name, 0)
        return BoltCounter(self, name)


def _is_growth(by: object) -> bool:
    return isinstance(by, int) and by >= 0


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class TopologyContext(StormNames):
    """What a task of a bolt knows about itself. `options` is the mapping passed to `build()`; `subscribers` maps each
    bolt that subscribes to this one to its number of tasks, for `emit_direct`."""

    topology_id: str
    component_id: str
    task_index: int
    task_count: int
    options: Mapping[str, Any]
    state: MapState | None = None
    """The state of a committer bolt; usable in `finish_batch` only. None for any other bolt."""
    subscribers: Mapping[str, int] = field(default_factory=dict)
    batch: BatchFacts | None = None
    """The facts of the batch, the same whenever it is replayed as recorded; None for a batch that was recorded by a
    version without them."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Shared by the bolts that run in the same task of the same attempt."""
    lookups: Lookups | None = None
    """How the states that the bolt reads are looked up, by the id of the committer; usable in `finish_batch` only."""
    metrics: BoltMetrics = field(default_factory=BoltMetrics, compare=False)
    """What the bolt counts itself: `metrics.counter("parsed").increment()`."""


class Bolt:
    """Base of the bolts that are classes. An instance passed to the builder is a prototype: each task of each attempt
    uses a fresh copy of it.

    `output` declares the emitted fields in Spark's DDL; a bolt that emits nothing leaves it empty. `streams` declares
    the fields of additional streams by name.
    """

    output: ClassVar[str] = ""
    streams: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        check_names(cls)


class BasicBolt(Bolt, ABC):
    """Processes one tuple at a time and is not aware of batches."""

    def prepare(self, context: TopologyContext) -> None:
        """Called once per task and attempt, before the first tuple."""

    @abstractmethod
    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        """Process one tuple."""


class BatchBolt(Bolt, ABC):
    """Processes the tuples of one batch that reach one task.

    Added with `set_committer_bolt` it is a committer: `finish_batch` then runs in the commit phase, in txid order.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Called once, before the first tuple of the batch; also if there is none."""

    @abstractmethod
    def execute(self, tuple: Tuple) -> None:
        """Process one tuple."""

    @abstractmethod
    def finish_batch(self) -> None:
        """Called once, after the last tuple of the batch; also if there was none."""


class ArrowBatchBolt(Bolt, ABC):
    """A `BatchBolt` that receives its tuples as Arrow record batches instead of one by one.

    With several inputs, `transactional.arrow.origin_of` returns the component and the stream of a batch.
    """

    @abstractmethod
    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        """Called once, before the first record batch; also if there is none."""

    @abstractmethod
    def execute_batch(self, batch: pa.RecordBatch) -> None:
        """Process some tuples of the batch: columns named like the fields of the upstream component."""

    def finish_batch(self) -> None:
        """Called once, after the last record batch; also if there was none."""


# --- values that Arrow can represent and Python can't: times outside the years 1 to 9999 --------------------------


@dataclass(frozen=True, slots=True)
class BeyondPython:
    """Such a value: its Arrow type, and its number, or its text if it is nested."""

    type: str
    text: str


class PartlyReadable(Tuple):
    """A tuple with values that Python can't represent: `BeyondPython` stands for them, and no bolt ever gets one."""

    __slots__ = ()

    @property
    def values(self) -> tuple[Any, ...]:
        """All values. Raises `SchemaMismatch` for the first one that Python can't represent."""
        return tuple(self)

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, slice):
            return tuple(map(self._readable, self._held()[field], self.fields[field]))
        found = super().__getitem__(field)
        return self._readable(found, self.fields[field]) if isinstance(found, BeyondPython) else found

    def __iter__(self) -> Iterator[Any]:
        return map(self._readable, super().__iter__(), self.fields)

    def __add__(self, other: Any) -> Any:
        return self.values + other

    def __radd__(self, other: Any) -> Any:
        return other + self.values

    def _readable(self, value: Any, field: str) -> Any:
        if isinstance(value, BeyondPython):
            raise SchemaMismatch(
                f"the field {field!r} of a tuple of {self.source!r} is {value.text} ({value.type}), "
                "which Python can't represent: its years are 1 to 9999; a bolt on Arrow batches can process it"
            )
        return value

    @classmethod
    def _value_at(cls, place: int) -> Any:
        return property(lambda self: self._readable(self._held()[place], self.fields[place]))


def known_values(row: Tuple) -> tuple[Any, ...]:
    """The values of a tuple, with placeholders for those that Python can't represent."""
    return row._held()
