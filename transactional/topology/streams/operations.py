"""`Operations`: the operations on the tuples of a stream, such as `map`, `filter` and `partition_by`.

Each adds a node to the graph of the topology and returns the stream of its output. Nothing runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import pyarrow as pa
from pyarrow.compute import Expression

from transactional.model.arrow import arrow_schema, declared_schema
from transactional.model.arrow.computed import expression_type
from transactional.model.errors import ConfigError
from transactional.model.groupings import CustomStreamGrouping, GroupingKind
from transactional.model.schema import Field, Schema
from transactional.model.user_code.storm_names import NamesOfStreams
from transactional.topology.streams.declarations import Declarations
from transactional.topology.streams.graph import Repartition, StreamNode
from transactional.topology.streams.pipelines import steps
from transactional.topology.streams.pipelines.expressions import as_expression, check_filter, field
from transactional.topology.streams.pipelines.user_functions import check_function, declared_output, parse_output
from transactional.topology.wiring import check_id, check_parallelism


class Operations(NamesOfStreams):
    """The operations of a `Stream` on its tuples. Each returns the stream of its output.

    A function is called with a row, a `Tuple`, whose values are `t.word` or `t["word"]`. Its output is declared by its
    return annotation, a NamedTuple, or by `output="word string"`. Expressions are made with `field`. Every mistake that
    can be detected without tuples raises `ConfigError` at its line.
    """

    def __init__(self, declarations: Declarations, node: StreamNode) -> None:
        self._declarations, self._node = declarations, node

    @property
    def fields(self) -> Schema:
        """Names and types of the fields."""
        return self._node.schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fields})"

    # --- functions of a row ---------------------------------------------------------------------------------------

    def map(self, function: Callable[[Any], Any], output: str | None = None) -> Self:
        """Replace each tuple by the one that a function returns: a tuple, or the value of the only field.

        A function that declares no output keeps the fields.
        """
        label = check_function("map", function)
        output_schema = declared_output(label, function, output) or self.fields
        return self._then(steps.Map(label, output_schema, self.fields, function))

    def flat_map(self, function: Callable[[Any], Any], output: str | None = None) -> Self:
        """Replace each tuple by any number of tuples. The function returns None, a tuple, or an iterable of tuples.

        With one field, it may return values instead of tuples. A function that declares no output keeps the fields.
        """
        label = check_function("flat_map", function)
        output_schema = declared_output(label, function, output) or self.fields
        return self._then(steps.FlatMap(label, output_schema, self.fields, function))

    def each(self, function: Callable[[Any], Any], output: str | None = None) -> Self:
        """Append fields to each tuple. The function returns their values.

        It may also return an iterable of tuples of values, each of which makes a tuple, or None, which drops the tuple.
        """
        label = check_function("each", function)
        new = self._require_output(label, function, output)
        for name in new.names:
            if name in self.fields.names:
                raise ConfigError(f"{label}: the stream has a field {name!r} already; its fields are: {self._names()}")
        output_schema = Schema((*self.fields, *new))
        return self._then(steps.Each(label, output_schema, self.fields, function))

    def filter(self, condition: Expression | Callable[[Any], Any]) -> Self:
        """Keep the tuples for which an expression, or a function, is true."""
        if isinstance(condition, Expression):
            check_filter("filter", condition, self.fields)
            return self._then(steps.Where(f"filter({condition})", self.fields, condition))
        label = check_function("filter", condition)
        return self._then(steps.Filter(label, self.fields, self.fields, condition))

    def peek(self, function: Callable[[Any], Any]) -> Self:
        """Call a function with every tuple, and change nothing. If a batch is repeated, it is called again."""
        label = check_function("peek", function)
        return self._then(steps.Peek(label, self.fields, self.fields, function))

    # --- columns --------------------------------------------------------------------------------------------------

    def with_columns(self, **columns: Any) -> Self:
        """Append or replace fields by expressions or constants: `with_columns(size=pc.utf8_length(field("word")))`."""
        if not columns:
            raise ConfigError("with_columns() needs a field, for example with_columns(double=field('n') * 2)")
        computed = {name: as_expression(f"with_columns({name}=…)", operand) for name, operand in columns.items()}
        types = {name: expression_type(f"with_columns({name}=…)", computed[name], self.fields) for name in computed}
        current_fields = [Field(f.name, types.pop(f.name, f.type)) for f in self.fields]
        output_schema = Schema((*current_fields, *(Field(name, type_) for name, type_ in types.items())))
        all_columns = {name: computed[name] if name in computed else field(name) for name in output_schema.names}
        label = f"with_columns({', '.join(f'{name}={operand}' for name, operand in computed.items())})"
        return self._then(steps.Compute(label, output_schema, all_columns))

    def project(self, *names: str) -> Self:
        """Keep only these fields, in this order."""
        if not names:
            raise ConfigError(f"project() names no field; the stream's fields are: {self._names()}")
        self._require(names, "project")
        return self._then(steps.Select(f"project({', '.join(names)})", self.fields.select(names), names))

    def rename(self, **names: str) -> Self:
        """Give fields other names: `rename(new="old")`."""
        self._require(names.values(), "rename")
        new_of = {old: new for new, old in names.items()}
        if len(new_of) < len(names):
            twice = next(old for new, old in names.items() if new_of[old] != new)
            raise ConfigError(f"rename: field {twice!r} is given two names; append one by with_columns(…)")
        output_schema = Schema(tuple(Field(new_of.get(f.name, f.name), f.type) for f in self.fields))
        label = f"rename({', '.join(f'{new}={old}' for new, old in names.items())})"
        return self._then(steps.Select(label, output_schema, self.fields.names))

    def arrow(self, function: Callable[[pa.RecordBatch], Any], output: str | None = None) -> Self:
        """Apply a function to each record batch.

        Without `output`, the function is called with an empty batch where the stream is declared, to learn its fields.
        """
        label = check_function("arrow", function)
        if output is not None:
            output_schema = parse_output(label, output)
        else:
            empty = pa.RecordBatch.from_pylist([], arrow_schema(self.fields))
            try:
                output_schema = declared_schema(function(empty).schema)
            except Exception as error:
                raise ConfigError(
                    f"{label} fails on an empty batch of '{self.fields}': {type(error).__name__}: {error}"
                ) from error
        return self._then(steps.Apply(label, output_schema, function))

    # --- repartitions ---------------------------------------------------------------------------------------------

    def partition_by(self, *names: str) -> Self:
        """Send tuples with equal values in these fields to the same task."""
        if not names:
            raise ConfigError(f"partition_by() names no field; the stream's fields are: {self._names()}")
        self._require(names, "partition_by")
        return self._cut(Repartition(GroupingKind.FIELDS, names))

    def shuffle(self) -> Self:
        """Distribute tuples evenly. Between equal numbers of tasks, they stay in their task."""
        return self._cut(Repartition(GroupingKind.SHUFFLE))

    def broadcast(self) -> Self:
        """Send every tuple to every task."""
        return self._cut(Repartition(GroupingKind.ALL))

    def global_(self) -> Self:
        """Send all tuples of a batch to one task."""
        return self._cut(Repartition(GroupingKind.GLOBAL))

    def batch_global(self) -> Self:
        """Send all tuples of a batch to one task, as `global_` does."""
        return self.global_()

    def partition(self, grouping: CustomStreamGrouping) -> Self:
        """Send each tuple to the tasks that `grouping` chooses."""
        if not isinstance(grouping, CustomStreamGrouping):
            raise ConfigError(f"partition takes an instance of a CustomStreamGrouping; got {grouping!r}")
        return self._cut(Repartition(GroupingKind.CUSTOM, (), grouping))

    def identity_partition(self) -> Self:
        """Return the stream as it is. It exists because Trident has it."""
        return self

    def local_or_shuffle(self) -> Self:
        """Return the stream as it is: tuples stay in their task. It exists because Trident has it."""
        return self

    def parallelism_hint(self, tasks: int) -> Self:
        """Set the number of tasks of all operations since the last repartition, or since the spout."""
        check_parallelism("parallelism_hint", tasks)
        return self._add(StreamNode(self.fields, parents=(self._node.number,), tasks=tasks))

    def named(self, name: str) -> Self:
        """Give the component that makes this stream a name, which is part of its id."""
        check_id("stream", name)
        return self._add(StreamNode(self.fields, parents=(self._node.number,), name=name))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _then(self, step: steps.StreamStep) -> Self:
        return self._add(StreamNode(step.output_schema, parents=(self._node.number,), step=step))

    def _cut(self, cut: Repartition) -> Self:
        return self._add(StreamNode(self.fields, parents=(self._node.number,), cut=cut))

    def _add(self, node: StreamNode) -> Self:
        return type(self)(self._declarations, self._declarations.graph.add(node))

    def _require(self, names: Iterable[Any], used_by: str) -> None:
        for name in names:
            if not isinstance(name, str):
                raise ConfigError(f"{used_by} takes names of fields; got {name!r}")
        try:
            self.fields.require(names, of="the stream", used_by=used_by)
        except ConfigError as error:
            raise ConfigError(f"{error}{self._output_hint()}") from None

    def _output_hint(self) -> str:
        """Return a hint for a missing field, if a function without a declared output kept the fields of its input."""
        step = self._node.step
        if not isinstance(step, steps.Map | steps.FlatMap) or step.output_schema is not step.input_schema:
            return ""
        return (
            f"; {step.label} declares no fields of its own, so it keeps those of its rows: pass output='name type, …'"
        )

    def _require_key(self, names: Iterable[Any], used_by: str) -> None:
        """Raise `ConfigError` unless these fields can be compared. Arrow groups and joins by no nested column."""
        self._require(names, used_by)
        for name in names:
            if pa.types.is_nested(arrow_schema(self.fields).field(name).type):
                type_ = self.fields[name].type
                raise ConfigError(f"{used_by}: field {name!r} is a {type_}, which can't be compared: use its parts")

    def _require_output(self, label: str, function: Callable[..., Any], output: str | None) -> Schema:
        declared = declared_output(label, function, output)
        if declared is None:
            raise ConfigError(
                f"{label}: the fields that it makes are not declared; pass output='name type, …', or annotate the "
                "function as returning a NamedTuple"
            )
        return declared

    def _names(self) -> str:
        return ", ".join(self.fields.names)
