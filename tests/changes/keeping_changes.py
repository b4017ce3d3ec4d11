"""What is changed between two runs of a program that keeps tuples, and what has to come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tests.changes.keeping import KEPT, RETYPED, SIDES, TYPES, Keeps, Place, shown, value_of
from transactional.errors import TransactionalError

Change = Callable[[Keeps, int], Keeps]


def _with(program: Keeps, fields: Mapping[str, str]) -> Keeps:
    return replace(program, fields=fields)


def _reordered(program: Keeps, _: int) -> Keeps:
    return _with(program, dict(reversed([*program.fields.items()])))


def _renamed(program: Keeps, number: int) -> Keeps:
    return _with(program, {f"c{number}" if name == f"a{number}" else name: of for name, of in program.fields.items()})


def _retyped(program: Keeps, number: int) -> Keeps:
    return _with(program, {**program.fields, f"a{number}": RETYPED[TYPES[number]]})


def _added(program: Keeps, number: int) -> Keeps:
    return _with(program, {f"c{number}": TYPES[number], **program.fields})


def _removed(program: Keeps, number: int) -> Keeps:
    return _with(program, {name: of for name, of in program.fields.items() if name != f"a{number}"})


CHANGES: Mapping[str, Change] = {
    "fields in another order": _reordered,
    "a field is renamed": _renamed,
    "a field has another type": _retyped,
    "a field is added": _added,
    "a field is removed": _removed,
    "spouts, streams and sides in another order": lambda program, _: replace(program, sides=program.sides[::-1]),
}
FREE = "fields in another order", "spouts, streams and sides in another order"
"""These go on without a word."""


def check(way: str, change: str, turn: int) -> None:
    """Change a program between two runs: first as it is, then accepted. Values are those of their fields, or it is
    refused in one line and goes on as it was."""
    before = Keeps(way)
    after = CHANGES[change](before, turn % len(TYPES))
    for accept in (False, True):
        place = Place()
        place.run(before)
        place.records = 2 * KEPT
        if (error := _refusal(place, after, accept=accept)) is not None:
            assert change not in FREE, str(error)
            assert (error.code in ("TX403", "TX101"), "\n" in str(error)) == (True, False), str(error)
            _go_on(place, before, accept=False)
            _check_rows(place, before, before)
            continue
        assert accept or change in FREE or way == "letters", "it goes on without a word"
        _check_rows(place, before, after)
        if change in FREE:
            return


def _refusal(place: Place, program: Keeps, *, accept: bool) -> TransactionalError | None:
    """Why a program does not go on; None: it does."""
    try:
        _go_on(place, program, accept=accept)
    except TransactionalError as error:
        return error
    return None


def _go_on(place: Place, program: Keeps, *, accept: bool) -> None:
    place.run(program, accept=accept, replays=program.way == "letters")


def _check_rows(place: Place, before: Keeps, after: Keeps) -> None:
    """Of each record of the first run the values by name, None in a field that it was kept without. A letter that is
    no tuple any more stays a letter, which says why."""
    rows, letters = place.rows(), place.tables.get("letters")
    waiting = [row.value[4] for row in letters.rows.values() if row.value[5] is None] if letters else []
    assert all(("lacks" in each or "does not match" in each) and "\n" not in each for each in waiting), waiting
    assert len(rows) + len(waiting) == len(SIDES) * KEPT
    for (side, id_), values in rows.items():
        for name, text in values.items():
            type_ = before.fields.get(name)
            expected = "None" if type_ is None else shown(value_of(side, id_, name, type_))
            assert text == expected, (side, id_, name)
        assert values.keys() <= {*before.fields, *after.fields}
