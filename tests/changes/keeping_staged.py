"""Rows that tasks stage are kept over no change of a program: a run processes what no run has committed.

So they are no row of the matrix of `keeping.py`. Here a run dies when its tasks have staged rows and the store has what
they read, and the changed program goes on: the table has what that program makes, of none of the dead run's files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from deltalake import DeltaTable

from state import DeltaMapState
from state.delta.segments.log_layout import LogLayout
from state.delta.tables.staging import STAGED_FOLDER
from tests.changes.keeping import KEPT, ROW, SIDES, Keeps, Place, Shaped, shown, text_of, value_of
from tests.changes.keeping_changes import CHANGES, FREE
from transactional import TransactionalTopologyBuilder
from transactional.bolts import BasicBolt
from transactional.errors import SchemaMismatch, TopologyChanged
from transactional.model.aggregates import Max
from transactional.model.user_code.tuples import Tuple
from transactional.testing import MemoryCoordinatorStore
from transactional.topology.topology import Topology

GREATEST = "decimal(20,4)", "double", "timestamp", "decimal(22,4)"
"""Types of which a state keeps the greatest value, by tasks, in a column of its own."""
SIDE_OF = {f"in-{side}": side for side in SIDES}


class Died(BaseException):
    """The process is gone."""


class Texts(BasicBolt):
    """Shows a tuple by name, before its values."""

    def __init__(self, program: Keeps) -> None:
        self.names = columns_of(program)
        self.output = f"{ROW}, {', '.join(f'{name} {program.fields[name]}' for name in self.names)}"  # type: ignore[misc]

    def execute(self, tuple: Tuple, collector: Any) -> None:
        collector.emit(tuple["id"], tuple.source, text_of(tuple.as_dict()), *(tuple[name] for name in self.names))


def columns_of(program: Keeps) -> list[str]:
    """The fields that have a column."""
    return [name for name, type_ in program.fields.items() if type_ in GREATEST and name != "at"]


def staging(folder: Path) -> Any:
    """The way of a program whose tasks stage the greatest value of each field."""

    def build(place: Place, program: Keeps) -> Topology:
        builder = TransactionalTopologyBuilder("staged", program.sides[0], place.spout())
        for side in program.sides[1:]:
            builder.set_spout(side, place.spout())
        bolt = builder.set_bolt("texts", Texts(program))
        for side in program.sides:
            builder.set_bolt(f"in-{side}", Shaped(side, program), output=program.of()).shuffle_grouping(side)
            bolt.shuffle_grouping(f"in-{side}")
        state = DeltaMapState(folder, layout=LogLayout(compact_after=None, staged_bytes=0))
        most = {name: Max(name) for name in ("text", *columns_of(program))}
        update = state.aggregate(**most).group_by("source", "id")
        builder.set_committer_bolt("shown", update).fields_grouping("texts", "id")
        return builder.build(strict=True)

    return build


@contextmanager
def dying() -> Iterator[None]:
    """The process dies when the store has what a transaction has read, and nothing is committed."""
    record = MemoryCoordinatorStore.record_processed

    def record_and_die(*given: Any, **named: Any) -> None:
        record(*given, **named)
        raise Died

    with mock.patch.object(MemoryCoordinatorStore, "record_processed", record_and_die):
        yield


def check_staged(folder: Path, change: str) -> None:
    """Change a program whose run has died. The table has what the changed program makes; or that is refused for the
    table's columns, and the program as it was goes on."""
    build, before = staging(folder), Keeps("staged")
    after = CHANGES[change](before, 2)
    place = Place(build=build)
    with dying(), suppress(Died):
        place.run(before)
    left = {each.name for each in (folder / STAGED_FOLDER).iterdir()}
    assert left, "nothing was staged"
    error = _refusal(place, after, accept=change not in FREE)
    if error is not None:
        assert change not in FREE, error
        assert "\n" not in error
        place.run(after := before)
    assert rows_of(place, after) == model(after)
    committed = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
    assert committed, "nothing is committed"
    assert not committed & left


def _refusal(place: Place, program: Keeps, *, accept: bool) -> str | None:
    """Why a program is refused; None: it is not."""
    try:
        place.run(program, accept=accept)
    except (TopologyChanged, SchemaMismatch) as error:
        return str(error)
    return None


Shown = dict[tuple[str, int], tuple[str, ...]]


def rows_of(place: Place, program: Keeps) -> Shown:
    """The text and the values of each row."""
    assert place.last is not None
    state: Any = place.last.component("shown").state
    names, rows = columns_of(program), state.read().to_pylist()
    return {(row["source"], row["id"]): (row["text"], *(shown(row[name]) for name in names)) for row in rows}


def model(program: Keeps) -> Shown:
    """The same, of the records themselves."""
    found: Shown = {}
    for source, side in SIDE_OF.items():
        for id_ in range(KEPT):
            values = {name: value_of(side, id_, name, type_) for name, type_ in program.fields.items()}
            found[source, id_] = text_of(values), *(shown(values[name]) for name in columns_of(program))
    return found
