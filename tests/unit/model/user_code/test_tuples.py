"""`Tuple`: what it is to bolts, against the plain record of fields and values that it stands for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from itertools import product
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transactional.errors import SchemaMismatch
from transactional.model.user_code import tuples
from transactional.model.user_code.tuples import BeyondPython, PartlyReadable, Tuple, tuple_class

TAKEN = sorted({*dir(Tuple), *dir(type), "known", "_0", "_1", "__0", "__bool__", "__call__", "__del__", "__set_name__"})


@dataclass(frozen=True, slots=True)
class Record:
    """The model: nothing but its four parts."""

    fields: tuple[str, ...]
    values: tuple[Any, ...]
    source: str
    stream: str

    def __getitem__(self, field: str | int) -> Any:
        return self.values[field if isinstance(field, int) else self.fields.index(field)]


@dataclass(frozen=True)
class Index:
    """A number that is no `int`, as there are in other libraries."""

    number: int

    def __index__(self) -> int:
        return self.number


NAMES = st.one_of(st.sampled_from(TAKEN), st.sampled_from(["word", "n", "class", "a b", "é", ""]), st.text(max_size=3))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.floats(), st.text(max_size=2), st.lists(st.integers())
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    fields = draw(st.lists(NAMES, max_size=4))
    values = draw(st.tuples(*(VALUES for _ in fields)))
    return Record(tuple(fields), values, draw(st.sampled_from(["split", "other"])), draw(st.sampled_from("ab")))


def tuple_of(record: Record) -> Tuple:
    return Tuple(record.fields, record.values, record.source, record.stream)


def same(one: Any, other: Any) -> bool:
    """Equal, with a number that is none equal to itself."""
    return repr(one) == repr(other) and type(one) is type(other)


def check_alone(record: Record) -> None:
    """What a bolt asks of one tuple."""
    row = tuple_of(record)
    assert isinstance(row, Tuple)
    assert same(
        (row.fields, row.values, row.source, row.stream), tuple(getattr(record, n) for n in Tuple.__match_args__)
    )
    assert (same(list(row), list(record.values)), len(row), bool(row)) == (
        True,
        len(record.values),
        bool(record.values),
    )
    for place, field in product(range(len(record.fields)), record.fields):
        assert same(row[field], record[field])
        assert same((row[place], row[place - len(row)], row[Index(place)]), (record[place],) * 3)
        assert same(row[place:], record.values[place:])
    for field in record.fields:
        if field in ("count", "index", "as_dict"):
            assert callable(getattr(row, field))
        elif field not in dir(Tuple) and not field.startswith("_"):
            assert same(getattr(row, field), record[field])
            with pytest.raises(AttributeError):
                setattr(row, field, 1)
    if len(set(record.fields)) == len(record.fields):
        assert same(row.as_dict(), dict(zip(record.fields, record.values, strict=True)))
    assert repr(row) == repr(record).replace(Record.__qualname__, "Tuple", 1)


def check_copies(record: Record) -> None:
    """What comes out of pickles and copies."""
    row = tuple_of(record)
    pickles = [load(dump(row)) for dump, load in ((pickle.dumps, pickle.loads), (cloudpickle.dumps, pickle.loads))]
    for again in [*pickles, copy.copy(row), copy.deepcopy(row)]:
        assert type(again) is type(row)
        assert repr(again) == repr(row)


def check_pair(one: Record, other: Record) -> None:
    """What is equal."""
    a, b = tuple_of(one), tuple_of(other)
    assert (a == b, a != b, b == a) == (one == other, one != other, one == other)
    assert (a == other.values, other.values == a, a != other.values) == (
        one.values == other.values,
        one.values == other.values,
        one.values != other.values,
    )
    assert a != list(one.values)
    try:
        expected = len({one, other})
    except TypeError:
        with pytest.raises(TypeError, match="unhashable"):
            hash((a, b))
    else:
        assert len({a, b}) == expected
        assert hash(a) == hash(one.values)


@given(records())
def test_a_tuple_holds_fields_and_values(record: Record) -> None:
    check_alone(record)
    check_copies(record)


@given(records(), records(), st.integers(0, 15))
def test_tuples_are_equal_if_all_their_parts_are(one: Record, other: Record, taken_over: int) -> None:
    """Parts of the other one are taken over, so that they are equal in some ways only."""
    fields, values = (one.fields, one.values) if taken_over & 1 else (other.fields, other.values)
    if taken_over & 2 and len(one.values) == len(fields):
        values = one.values
    source = one.source if taken_over & 4 else other.source
    stream = one.stream if taken_over & 8 else other.stream
    check_pair(one, Record(fields, values, source, stream))


WRONG: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "unequal is not the opposite of equal": lambda patch: patch.setattr(Tuple, "__ne__", tuple.__ne__),
    "only values count": lambda patch: patch.setattr(Tuple, "__eq__", tuple.__eq__),
    "a plain tuple is never equal": lambda patch: patch.setattr(
        Tuple, "__eq__", lambda a, b: isinstance(b, Tuple) and tuple.__eq__(a, b) and a._described() == b._described()
    ),
    "no stream in a pickle": lambda patch: patch.setattr(
        Tuple, "__reduce__", lambda row: (Tuple, (row.fields, row.values, row.source))
    ),
    "fields go before methods": lambda patch: patch.setattr(tuples, "dir", lambda _: (), raising=False),
    "the neighbour's value": lambda patch: patch.setattr(
        Tuple, "_make_descriptor", classmethod(lambda _, place: property(lambda row: tuple.__getitem__(row, place - 1)))
    ),
    "values can be set": lambda patch: patch.setattr(
        Tuple,
        "_make_descriptor",
        classmethod(lambda _, place: property(lambda row: tuple.__getitem__(row, place), lambda *_: None)),
    ),
    "the last of two fields of one name": lambda patch: patch.setattr(Tuple, "__getitem__", last_named),
}


def last_named(row: Tuple, field: Any) -> Any:
    places = {name: number for number, name in enumerate(row.fields)}
    return tuple.__getitem__(row, places.get(field, field))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_one_is_found_out(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Record(("word", "count", "word"), ("cat", 1, "dog"), "split", "a")
    others = [row, Record(row.fields, row.values, "other", "a"), Record(("n",), (float("nan"),), "split", "b")]

    def check() -> None:
        for one, other in product(others, others):
            check_alone(one)
            check_copies(one)
            check_pair(one, other)

    check()
    WRONG[wrong](monkeypatch)
    tuples._make_class.cache_clear()
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception, TypeError, ValueError, AttributeError)):
            check()
    finally:
        monkeypatch.undo()
        tuples._make_class.cache_clear()


def test_the_class_is_made_once_per_stream() -> None:
    one, again = Tuple(("word",), ("cat",), "split"), Tuple(["word"], ["dog"], "split")
    assert type(one) is type(again) is tuple_class(("word",), "split", "default")
    assert type(one) is not type(Tuple(("word",), ("cat",), "split", "late"))
    tuples._make_class.cache_clear()
    assert Tuple(("word",), ("cat",), "split") == one
    assert isinstance(one, tuple)


def test_an_unknown_field_is_reported_with_those_there_are() -> None:
    row = Tuple(("word", "count"), ("cat", 1), "split")
    told = "the tuple has no field 'wrod'; its fields are word, count — did you mean 'word'?"
    with pytest.raises(KeyError, match=told):
        row["wrod"]
    with pytest.raises(AttributeError, match=told):
        _ = row.wrod
    with pytest.raises(KeyError, match="the tuple has no field None; its fields are word, count"):
        row[None]
    with pytest.raises(IndexError):
        row[2]
    assert row.count("cat") == row["count"] == 1


def test_a_tuple_stays_as_it_is() -> None:
    row: Any = Tuple(("word",), ("cat",), "split")
    for name in ("word", "values", "fields", "source", "stream", "another"):
        with pytest.raises((AttributeError, FrozenInstanceError)):
            setattr(row, name, ("dog",))
        with pytest.raises((AttributeError, FrozenInstanceError)):
            delattr(row, name)
    with pytest.raises(TypeError):
        row[0] = "dog"
    assert (row.values, vars(type(row))["source"]) == (("cat",), "split")


def test_a_tuple_matches_by_its_parts() -> None:
    match Tuple(("word",), ("cat",), "split"):
        case Tuple(fields, values, "split", "default"):
            assert (fields, values) == (("word",), ("cat",))
        case _:
            pytest.fail("no match")


@settings(max_examples=20)
@given(st.integers(0, 2))
def test_nobody_is_given_a_value_that_python_does_not_hold(place: int) -> None:
    plain = (1,)
    far = BeyondPython("timestamp", "9" * 20)
    row: Any = PartlyReadable(("a", "b", "known"), [far if n == place else n for n in range(3)], "split", "late")
    readable = [n for n in range(3) if n != place]
    assert [row[n] for n in readable] == [row[row.fields[n]] for n in readable] == readable
    assert [getattr(row, row.fields[n]) for n in readable] == readable
    asks: list[Callable[[], Any]] = [lambda: row[place], lambda: row[Index(place)], lambda: row[row.fields[place]]]
    asks += [lambda: getattr(row, row.fields[place]), lambda: row[:], lambda: row.values, row.as_dict, lambda: [*row]]
    asks += [lambda: row + plain, lambda: plain + row, lambda: max(*row)]
    for ask in asks:
        with pytest.raises(SchemaMismatch, match=f"field '{row.fields[place]}' of a tuple of 'split' is {far.text}"):
            ask()
    again = pickle.loads(pickle.dumps(row))
    assert (type(again), repr(again), again == row, again != row) == (type(row), repr(row), True, False)
    assert repr(row).startswith("PartlyReadable(fields=('a', 'b', 'known'), values=(")
