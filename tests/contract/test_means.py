"""What every state promises of a column that is computed when rows are read: a mean is one of all that was committed.

What is right is computed in plain Python, of the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from math import isclose
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from spouts import OpaqueMemoryTransactionalSpout
from state import DeltaMapState, LogLayout, MemoryMapState
from tests.contract.states import AnyState, Place
from transactional import TransactionalTopologyBuilder, Tuple
from transactional.core.ports import Partials
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.errors import ConfigError
from transactional.model.aggregates import Aggregate, Avg, Count, Max, Min
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TxId
from transactional.model.config import TopologyConfig
from transactional.model.schema import Schema
from transactional.operations.doctor.checked_tables import checked_tables
from transactional.operations.queries.as_of import as_of
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.topology.topology import Topology
from transactional.trident import field
from verifier.checker import verify

Numbers = Mapping[str, list[Any]]
CONFIG = TopologyConfig(stop_when_drained=True, attempts_max=2, retry_pause_ms=1)
NAN, LARGE = float("nan"), 2**61
EIGHTHS = [Decimal("-0.01"), *[Decimal(0)] * 31]
"""Their mean, -0.0003125, is half way between two decimals of six digits."""
FIRST: dict[str, Numbers] = {
    "byte": {"a": [1, 2, None, 127], "b": [None]},
    "long": {"a": [LARGE, LARGE - 1, None], "b": [None], "d": [0]},
    "double": {"a": [0.1, None, 0.2], "b": [None], "d": [NAN, 1.0]},
    "decimal(10,2)": {"a": [Decimal("0.01"), None, Decimal("99999999.99")], "b": [None], "e": EIGHTHS},
}
"""The numbers of the first transaction, by word, of each type."""
DEAD: Numbers = {"a": [7], "zombie": [7], "c": [None]}
SECOND: Numbers = {"a": [4, 4, 5], "c": [3, 4]}
STORED = {"byte": "long", "long": "long", "double": "double", "decimal(10,2)": "decimal(20,2)"}


def both(one: Numbers, other: Numbers) -> Numbers:
    return {word: [*one.get(word, []), *other.get(word, [])] for word in {**one, **other}}


def of(numbers: Numbers, type_: str) -> Numbers:
    """The same numbers, as values of a type."""
    kind = {"double": float, "decimal(10,2)": Decimal}.get(type_, int)
    return {word: [None if each is None else kind(each) for each in its] for word, its in numbers.items()}


def means(numbers: Numbers) -> dict[str, Any]:
    """The mean of those that are not NULL; NaN as a word, to be comparable."""
    found: dict[str, Any] = {}
    for word, its in numbers.items():
        known = [each for each in its if each is not None]
        if any(each != each for each in known):
            found[word] = "NaN"
        else:
            mean = sum(map(Fraction, known), Fraction()) / max(len(known), 1)
            found[word] = (rounded(mean) if isinstance(known[0], Decimal) else float(mean)) if known else None
    return found


def rounded(mean: Fraction) -> Decimal:
    """To four digits more than decimal(10,2) has, half up."""
    return Decimal(int(abs(mean) * 10**6 + Fraction(1, 2)) * (1 if mean > 0 else -1)).scaleb(-6)


def seen(rows: pa.Table, column: str = "mean_n") -> dict[str, Any]:
    found = {row["word"]: row[column] for row in rows.to_pylist()}
    return {word: "NaN" if each != each else each for word, each in found.items()}


def are_close(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """To the last digit of a double but one: a large sum is one, too."""
    pairs = [(found.get(word), mean) for word, mean in expected.items()]
    return found.keys() == expected.keys() and all(
        one == other or (isinstance(one, float) and isinstance(other, float) and isclose(one, other, rel_tol=1e-15))
        for one, other in pairs
    )


def parts(update: Any, numbers: Numbers, type_: str, tasks: int = 2) -> Partials:
    """What some tasks make of the numbers, and the driver of that."""
    schema = arrow_schema(Schema.parse(f"word string, n {type_}"))
    rows = [(word, each) for word, its in numbers.items() for each in its]
    batches = [
        pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows[at::tasks]], schema)
        for at in range(tasks)
    ]
    aggregator = update.aggregator()
    return Partials(update.combine, aggregator.combine([aggregator.partial(batch.to_batches()) for batch in batches]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("type_", FIRST)
def test_a_mean_is_one_of_all_that_was_committed(place: Place, type_: str) -> None:
    """Of numbers, not of the means of transactions; a dead attempt's count nothing."""
    first = FIRST[type_]
    update = place.state(values=f"sum_n {STORED[type_]}, count_n long").mean("n")
    update.bind_input(Schema.parse(f"word string, n {type_}"), used_by="the test")
    state: Any = update.state
    place.fence(state, 0, 1)
    state.merge(place.attempt(1, 2), parts(update, first, type_))
    assert are_close(seen(state.read()), means(first))
    state.merge(place.attempt(2, 3), parts(update, of(DEAD, type_), type_))
    place.fence(state, 2, 4)
    state.merge(place.attempt(2, 5), parts(update, of(SECOND, type_), type_))
    every = both(first, of(SECOND, type_))
    assert are_close(seen(state.read()), means(every))
    assert are_close(seen(state.read(TxId(1))), means(first))
    assert state.read().column_names == ["word", "sum_n", "count_n", "mean_n"]


ROWS: list[tuple[str, int | None]] = [("a", 1), ("b", None), ("a", 2), ("a", 6), ("c", 5), ("a", 1)]
ALL: Numbers = {"a": [1, 2, 6, 1], "b": [None], "c": [5]}


class Range(Aggregate):
    """One of a user's own: two columns of which a third is made."""

    def __init__(self, of: str) -> None:
        self.of = of

    def columns(self, name: str) -> Mapping[str, Aggregate]:
        return {f"{name}_least": Min(self.of), f"{name}_most": Max(self.of)}

    def finish(self) -> Any:
        return field("range_most") - field("range_least")


def topology_of(state: AnyState, kept: MemoryMapState, **others: Aggregate) -> Topology:
    """Means by word, and the new ones of each transaction, which a bolt and a state are given."""
    spout = OpaqueMemoryTransactionalSpout([ROWS], "word string, n long", take=3)
    builder = TransactionalTopologyBuilder("means", "numbers", spout)
    update = state.aggregate(mean_n=Avg("n"), count=Count(), **others)
    builder.set_committer_bolt("means", update.group_by("word")).fields_grouping("numbers", "word")
    doubled = builder.set_bolt("doubled", double, output="word string, n double")
    doubled.shuffle_grouping("means")
    builder.set_committer_bolt("kept", kept.max("n")).fields_grouping("doubled", "word")
    return builder.build()


def double(row: Tuple) -> Iterable[tuple[str, float]]:
    """Of a mean that there is."""
    return [] if row.mean_n is None else [(row.word, 2 * row.mean_n)]


def test_whoever_reads_a_mean_reads_the_same(place: Place, tmp_path: Path) -> None:
    """The state, a bolt behind it, a snapshot of all tables; and the checker finds nothing wrong."""
    kept, url = MemoryMapState("word string"), f"sqlite:///{tmp_path}/store.db"
    state = place.unopened()
    topology = topology_of(state, kept, range=Range("n"))
    store = SqlCoordinatorStore(url)
    TopologyDriver(topology, store, LocalExecutor(topology), CONFIG).run()
    expected = means(ALL)
    assert seen(state.read()) == expected
    assert seen(state.read(), "range") == {"a": 5, "b": None, "c": 0}
    assert seen(kept.read(), "max_n") == {"a": 2 * 2.5, "c": 2 * 5.0}
    if place.has_readers:
        with as_of(topology, url) as snapshot:
            assert seen(snapshot["means"]) == expected
            assert seen(snapshot["means"], "range")["a"] == 5
        tables, _ = checked_tables(topology)
        report = verify(url, "means", tables)
        assert report.findings == ()
        assert place.engine == "memory" or report.checked["rows"] >= len(ALL)


LAYOUTS = pytest.mark.parametrize("layout", ["merge", LogLayout(compact_after=None)], ids=["merge", "log"])


def run_into(folder: Path, layout: str | LogLayout) -> list[DeltaMapState]:
    """The state of a topology that has run, and one as another process opens it."""
    state, elsewhere = DeltaMapState(folder / "means", layout=layout), DeltaMapState(folder / "means", "word")
    topology = topology_of(state, MemoryMapState("word string"))
    store = SqlCoordinatorStore(f"sqlite:///{folder}/store.db")
    TopologyDriver(topology, store, LocalExecutor(topology), CONFIG).run()
    elsewhere.mean("n")
    return [state, elsewhere]


@LAYOUTS
def test_a_view_has_the_mean(layout: str | LogLayout, tmp_path: Path) -> None:
    for reader in run_into(tmp_path, layout):
        sql = reader.view("t", dialect="datafusion")
        found = pa.table(QueryBuilder().register("t", DeltaTable(tmp_path / "means")).execute(sql).read_all())
        assert seen(found) == means(ALL)
        assert sorted(found.column_names) == sorted(reader.read().column_names)


@pytest.mark.spark
@LAYOUTS
def test_a_view_of_spark_has_the_mean(layout: str | LogLayout, tmp_path: Path, spark: Any) -> None:
    for reader in run_into(tmp_path, layout):
        assert seen(spark.sql(reader.view(f"delta.`{tmp_path}/means`")).toArrow()) == means(ALL)


@pytest.mark.parametrize(
    ("aggregate", "stored"),
    [(Range("n"), "range_least long, range_most long"), (Avg("n"), "sum_n decimal(20,2), count_n long")],
)
def test_a_view_of_what_has_no_sql_is_refused(aggregate: Aggregate, stored: str, tmp_path: Path) -> None:
    """Engines round quotients of decimals differently."""
    state = DeltaMapState(tmp_path / "means", "word string", stored)
    state.aggregate(range=aggregate)
    state.open("means/means", TxId)
    with pytest.raises(ConfigError, match=r"column 'range' is computed by .*(Range|Avg).*, which is not known in SQL"):
        state.view("t")
    state.close()
