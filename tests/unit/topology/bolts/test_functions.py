"""Functions as bolts: what they work on and what they emit, read from their annotations; and what is told else."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tests.unit.fakes import Upper, builder, with_committer
from transactional.errors import ConfigError
from transactional.model.schema import Schema
from transactional.model.user_code.tuples import Tuple
from transactional.topology.bolts.functions import BoltFunction, FunctionKind

WORD = "word string"


class Length(NamedTuple):
    word: str
    length: int | None
    parts: list[str]
    seen: dict[str, float]


class Misspelt(Upper):
    output = "word strin"


def built(bolt: Any, output: str | None = None) -> BoltFunction:
    """A function as the builder understands it."""
    made = with_committer(builder())
    made.set_bolt("bolt", bolt, output=output).shuffle_grouping("spout")
    component = next(c for c in made.build().components if c.id == "bolt")
    assert isinstance(component.bolt, BoltFunction)
    assert component.output == component.bolt.output
    return component.bolt


def tuple_wise(row: Tuple) -> Any: ...


def arrow_wise(batch: pa.RecordBatch) -> Any: ...


def quoted(batch: "pa.RecordBatch") -> Any: ...  # noqa: UP037 - as it is written without the __future__ import


def of_a_frame(frame: DataFrame) -> Any: ...  # type: ignore[name-defined]  # noqa: F821 - known to type checkers alone


def of_a_table(table: pa.Table) -> Any: ...


def with_a_default(row: Tuple, limit: int = 3) -> Any: ...


class Instance:
    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (tuple_wise, FunctionKind.TUPLE),
        (lambda row: None, FunctionKind.TUPLE),
        (with_a_default, FunctionKind.TUPLE),
        (functools.partial(with_a_default, limit=4), FunctionKind.TUPLE),
        (arrow_wise, FunctionKind.ARROW),
        (quoted, FunctionKind.ARROW),
        (Instance(), FunctionKind.ARROW),
        (of_a_frame, FunctionKind.DATAFRAME),
    ],
)
def test_what_a_function_works_on_follows_from_its_annotation(
    function: Callable[[Any], Any], kind: FunctionKind
) -> None:
    assert built(function, output=WORD) == BoltFunction(function, kind, Schema.parse(WORD))


def one(row: Tuple) -> Length:
    raise NotImplementedError


def perhaps(row: Tuple) -> Length | None: ...


def several(row: Tuple) -> list[Length]:
    raise NotImplementedError


def generated(row: Tuple) -> Iterator[Length] | None: ...


@pytest.mark.parametrize("function", [one, perhaps, several, generated])
def test_a_named_tuple_that_is_returned_declares_the_output(function: Callable[[Tuple], Any]) -> None:
    assert str(built(function).output) == "word string, length long, parts array<string>, seen map<string,double>"


def test_a_declared_output_goes_before_the_annotation() -> None:
    assert str(built(one, output="w string, n int, p array<string>, s map<string,float>").output).startswith("w string")


class Complex(NamedTuple):
    number: complex


def unknown_type(row: Tuple) -> Complex:
    raise NotImplementedError


def two(row: Tuple, other: Tuple) -> Any: ...


def none() -> Any: ...


def keyword(*, row: Tuple) -> Any: ...


@pytest.mark.parametrize(
    ("function", "output", "expected"),
    [
        (tuple_wise, None, "bolt 'bolt': the output of tuple_wise is not declared; pass output='name type, …'"),
        (lambda row: None, None, "bolt 'bolt': the output of <lambda> is not declared"),
        (two, WORD, "bolt 'bolt': two must take one argument"),
        (none, WORD, "bolt 'bolt': none must take one argument"),
        (keyword, WORD, "bolt 'bolt': keyword must take one argument"),
        (
            of_a_table,
            WORD,
            "bolt 'bolt': of_a_table takes a Table; the argument is a transactional.Tuple, a pyarrow.R",
        ),
        (
            unknown_type,
            None,
            "bolt 'bolt': field 'number' is annotated as complex, which has no Spark type; pass out",
        ),
        (
            tuple_wise,
            "word strin",
            "the output of bolt 'bolt' is declared incorrectly: unknown type 'strin' — did you mean 's",
        ),
        (
            tuple_wise,
            "word",
            "the output of bolt 'bolt' is declared incorrectly: 'word' in 'word' is not of the form 'name ty",
        ),
        (
            Misspelt(),
            None,
            "the output of bolt 'bolt' is declared incorrectly: unknown type 'strin' — did you mean 'string'?",
        ),
        (Upper(), WORD, "bolt 'bolt': Upper declares its own output; omit output=…"),
        (Upper, None, "bolt 'bolt' is the class Upper; pass an instance: Upper(…)"),
        (dict, WORD, "bolt 'bolt' is the class dict; pass an instance"),
        (3, None, "bolt 'bolt' is a int; it must be a BasicBolt, BatchBolt, ArrowBatchBolt or a function"),
        (max, WORD, "bolt 'bolt': max must take one argument"),
    ],
)
def test_a_bolt_that_is_none_is_reported(function: Any, output: str | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(expected)}"):
        built(function, output)
