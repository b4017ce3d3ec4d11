"""`multi_reduce`: your own code over the tuples of one batch of several streams, as Storm's `MultiReducer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.picklable import check_picklable
from transactional.model.user_code.tuples import Tuple
from transactional.topology.streams.aggregates.own import groups_of, rows_of
from transactional.topology.streams.pipelines.functions import many_rows, parse_output
from transactional.topology.streams.pipelines.joins import Side, StreamCombiner, check_comparable


class MultiReducer(ABC):
    """Makes any number of tuples of those of several streams in one batch. `output` declares their fields.

    `multi_reduce` calls it for each key, or, without keys, in each task. The tuples come stream by stream, those of
    each stream in their order.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """What is kept before the first tuple."""

    @abstractmethod
    def reduce(self, kept: Any, stream: int, row: Tuple) -> Any:
        """What is kept with one more tuple, of the stream with this number, counted from 0."""

    @abstractmethod
    def complete(self, kept: Any) -> Iterable[tuple[Any, ...]]:
        """The tuples."""


class MultiReduce(StreamCombiner):
    """Calls a `MultiReducer` with the tuples of each key, or with all tuples of the task."""

    name = "multi_reduce"

    def __init__(self, sides: Sequence[Side], reducer: MultiReducer) -> None:
        self.label = checked_reducer(reducer)
        check_comparable("multi_reduce", sides)
        first, *_ = sides
        super().__init__(sides, Schema((*first.schema.select(first.key), *parse_output(self.label, reducer.output))))
        self.reducer = reducer

    @property
    def steps_shown(self) -> tuple[str, ...]:
        """The reducer, and what is compared."""
        on = " = ".join(f"({', '.join(side.key)})" for side in self.sides if side.key)
        return (f"{self.label} by {on}" if on else self.label,)

    def combine(self, tables: Sequence[pa.Table]) -> pa.RecordBatch:
        """The keys are in the order of their first tuples; without one there is a group of all, also of none."""
        keys = [table.select(side.key) for table, side in zip(tables, self.sides, strict=True)]
        names = keys[0].column_names
        compared = pa.concat_tables([key.rename_columns(names) for key in keys]) if names else None
        rows = [(number, row) for number, table in enumerate(tables) for row in rows_of(table, self.label)]
        groups = [list(range(len(rows)))] if compared is None else groups_of(compared, names)
        made = chain.from_iterable(self._made(rows, group) for group in groups)
        return batch_from_rows(list(made), arrow_schema(self.output_schema), component=self.label)

    def _made(self, rows: Sequence[tuple[int, Tuple]], group: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        kept = self.reducer.init()
        for at in group:
            kept = self.reducer.reduce(kept, *rows[at])
        key: tuple[Any, ...] = ()
        if self.sides[0].key:
            number, first = rows[group[0]]
            key = tuple(first[name] for name in self.sides[number].key)
        width = len(self.output_schema) - len(key)
        return ((*key, *each) for each in many_rows(self.label, self.reducer.complete(kept), width))


def checked_reducer(reducer: Any) -> str:
    """What messages call it. Raises `ConfigError` unless it is a `MultiReducer` that can be sent to executors."""
    if not isinstance(reducer, MultiReducer):
        raise ConfigError(f"multi_reduce takes an instance of a MultiReducer as reducer=; got {reducer!r}")
    label = f"multi_reduce({type(reducer).__name__}())"
    check_picklable(label, reducer, advice="create what it needs in its methods")
    return label
