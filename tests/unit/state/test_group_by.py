"""States that are given no key: their update names it, and they are then what they are with that key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state import Count, DeltaMapState, Max, MemoryMapState, SqlMapState, Sum
from state.declared import DeclaredTable
from state.table_state import TableState
from state.updates import StateUpdate
from tests.unit.fakes import builder
from transactional import Topology, TopologyConfig, run_topology
from transactional.errors import ConfigError
from transactional.model.schema import Schema

FLIGHTS = [[("AA", 1, 5), ("BA", 1, 7), ("AA", 1, 2), ("AA", 2, 1)]]
FIELDS = "carrier string, day int, delay int"


def state_of(kind: str, folder: Path, *key: Any) -> Any:
    """One of each kind, with or without a key."""
    match kind:
        case "memory":
            return MemoryMapState(*key)
        case "delta":
            return DeltaMapState(folder / "table", *key)
        case _:
            return SqlMapState(f"sqlite:///{folder}/states.db", "flights", *key)


def flights(update: StateUpdate) -> Topology:
    made = builder(MemoryTransactionalSpout(FLIGHTS, FIELDS, take=2))
    made.set_committer_bolt("flights", update).fields_grouping("spout", "carrier")
    return made.build()


def run(topology: Topology, folder: Path) -> None:
    config = TopologyConfig(stop_when_drained=True)
    run_topology(topology, store=f"sqlite:///{folder}/store.db", config=config, master="none")


KINDS = ["memory", "delta", "sql"]
KEYS: dict[tuple[str, ...], set[tuple[Any, ...]]] = {
    ("carrier", "day"): {("AA", 1, 2, 7), ("BA", 1, 1, 7), ("AA", 2, 1, 1)},
    ("day", "carrier"): {(1, "AA", 2, 7), (1, "BA", 1, 7), (2, "AA", 1, 1)},
    ("carrier",): {("AA", 3, 8), ("BA", 1, 7)},
    (): {(4, 15)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fields", KEYS, ids=lambda fields: "-".join(fields) or "one row")
def test_a_state_is_what_it_is_with_the_key_written_out(kind: str, fields: tuple[str, ...], tmp_path: Path) -> None:
    check(kind, fields, tmp_path)


def check(kind: str, fields: tuple[str, ...], folder: Path) -> None:
    def update(state: TableState[Any]) -> StateUpdate:
        return state.aggregate(count=Count(), total=Sum("delay"))

    given, named = state_of(kind, folder, fields), state_of(kind, folder)
    with_key, without = flights(update(given)), flights(update(named).group_by(*fields))
    assert without.fingerprint() == with_key.fingerprint()
    assert (named.key, named.declared.key_names, named.values) == (given.key, fields, given.values)
    run(without, folder)
    columns = [*fields, "count", "total"]
    assert {tuple(row[name] for name in columns) for row in named.read().to_pylist()} == KEYS[fields]
    if kind != "memory":
        run(with_key, folder)
        assert given.read().sort_by(columns[0]).equals(named.read().sort_by(columns[0]))


WRONG: dict[str, tuple[Any, str, Any]] = {
    "the names are forgotten when the key is bound": (
        DeclaredTable,
        "bind",
        lambda columns, key, values: columns.__dict__.update(_key=key, _values=values),
    ),
    "fields in the order of the input": (
        StateUpdate,
        "group_by",
        lambda update, *fields: StateUpdate(update._state, update._aggregates, tuple(sorted(fields))),
    ),
    "one row, if there is no key": (
        StateUpdate,
        "group_by",
        lambda update, *fields: StateUpdate(update._state, update._aggregates, ()),
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_variant_is_found_out(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises((AssertionError, ConfigError)):
        check("memory", ("day", "carrier"), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_nobody_names_is_reported(kind: str, tmp_path: Path) -> None:
    state = state_of(kind, tmp_path)
    told = r"has no key: give key='word', or let its update name it: \.count\(\)\.group_by\('word'\)"
    asks: list[Callable[[], Any]] = [lambda: flights(state.count()), lambda: state.key, lambda: state.declared.columns]
    for ask in asks:
        with pytest.raises(ConfigError, match=told):
            ask()


def test_a_key_that_the_update_contradicts_is_reported() -> None:
    update = MemoryMapState("carrier string").max("delay")
    told = r"state 'memory' has the key \(carrier\), and its update groups by \(day, carrier\): make them agree"
    with pytest.raises(ConfigError, match=told):
        update.group_by("day", "carrier")
    assert update.group_by("carrier").input_fields == ("carrier", "delay")
    first = MemoryMapState()
    flights(first.count().group_by("day"))
    flights(first.count().group_by("day"))
    with pytest.raises(ConfigError, match=r"has the key \(day\), and its update groups by \(carrier\)"):
        first.count().group_by("carrier")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda s: s.count().group_by("career"), r"'career'.*did you mean 'carrier'"),
        (lambda s: s.count("day").group_by("day"), "collide"),
        (lambda s: s.aggregate(day=Max("day")).group_by("day"), "collide"),
    ],
)
def test_fields_that_do_not_fit_are_reported_when_it_is_built(make: Callable[[Any], StateUpdate], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        flights(make(MemoryMapState()))


def test_a_field_that_is_no_key_is_reported() -> None:
    made = builder(MemoryTransactionalSpout([[(1.5,)]], "ratio double", take=1))
    made.set_committer_bolt("count", MemoryMapState().count().group_by("ratio")).fields_grouping("spout", "ratio")
    with pytest.raises(ConfigError, match="key column 'ratio' is a double"):
        made.build()


def test_the_values_of_a_state_without_a_key_are_known() -> None:
    assert MemoryMapState(None, "count long").declared.typed_columns == Schema.parse("count long")
