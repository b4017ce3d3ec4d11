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
from transactional.topology.streams.aggregates.own import group_rows, table_rows
from transactional.topology.streams.pipelines.joins import Side, StreamCombiner, check_comparable
from transactional.topology.streams.pipelines.user_functions import many_rows, parse_output


class MultiReducer(ABC):
    """Makes any number of tuples from those of several streams in one batch. `output` declares their fields.

    `multi_reduce` calls it for each key, or, without keys, in each task. It gets the tuples stream by stream, and those
    of a stream in their order.
    """

    output: ClassVar[str] = ""

    @abstractmethod
    def init(self) -> Any:
        """Return the accumulator before the first tuple."""

    @abstractmethod
    def reduce(self, accumulator: Any, stream: int, row: Tuple) -> Any:
        """Return the accumulator with one more tuple. `stream` is the number of its stream, from 0."""

    @abstractmethod
    def complete(self, accumulator: Any) -> Iterable[tuple[Any, ...]]:
        """Return the output tuples, from the last accumulator."""


class MultiReduce(StreamCombiner):
    """Calls a `MultiReducer` with the tuples of each key, or with all tuples of the task."""

    name = "multi_reduce"

    def __init__(self, sides: Sequence[Side], reducer: MultiReducer) -> None:
        self.label = check_reducer(reducer)
        check_comparable("multi_reduce", sides)
        first, *_ = sides
        super().__init__(sides, Schema((*first.schema.select(first.key), *parse_output(self.label, reducer.output))))
        self.reducer = reducer

    @property
    def steps_shown(self) -> tuple[str, ...]:
        keys = " = ".join(f"({', '.join(side.key)})" for side in self.sides if side.key)
        return (f"{self.label} by {keys}" if keys else self.label,)

    def combine(self, tables: Sequence[pa.Table]) -> pa.RecordBatch:
        """Reduce the tuples of each key, in the order of their first tuples. Without a key, all tuples of the task are
        one group, even if there are none."""
        keys = [table.select(side.key) for table, side in zip(tables, self.sides, strict=True)]
        names = keys[0].column_names
        compared = pa.concat_tables([key.rename_columns(names) for key in keys]) if names else None
        rows = [(number, row) for number, table in enumerate(tables) for row in table_rows(table, self.label)]
        groups = [list(range(len(rows)))] if compared is None else group_rows(compared, names)
        output = chain.from_iterable(self._reduce_group(rows, group) for group in groups)
        return batch_from_rows(list(output), arrow_schema(self.output_schema), component=self.label)

    def _reduce_group(self, rows: Sequence[tuple[int, Tuple]], group: Sequence[int]) -> Iterator[tuple[Any, ...]]:
        accumulator = self.reducer.init()
        for position in group:
            accumulator = self.reducer.reduce(accumulator, *rows[position])
        key: tuple[Any, ...] = ()
        if self.sides[0].key:
            number, first = rows[group[0]]
            key = tuple(first[name] for name in self.sides[number].key)
        width = len(self.output_schema) - len(key)
        return ((*key, *row) for row in many_rows(self.label, self.reducer.complete(accumulator), width))


def check_reducer(reducer: Any) -> str:
    """Return the label of a reducer. Raises `ConfigError` unless it is a `MultiReducer` that can be sent to
    executors."""
    if not isinstance(reducer, MultiReducer):
        raise ConfigError(f"multi_reduce takes an instance of a MultiReducer as reducer=; got {reducer!r}")
    label = f"multi_reduce({type(reducer).__name__}())"
    check_picklable(label, reducer, advice="create what it needs in its methods")
    return label
