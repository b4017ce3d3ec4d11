"""`Kind`: a kind of change between two runs, and the changes of fields that several kinds make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.changes.places import PLACES
from tests.changes.program import TYPES, Program

SAME = "the same result"
ONWARDS = "it begins with the next transaction"
STATE, FIELDS = "TX101 the state needs", "fields: stored"
PLAIN = {"window": "", "lets": "all"}
SENT_FIELDS = tuple(name for name in TYPES if name != "m")
"""The fields of a record, without one that is in no table."""


@dataclass(frozen=True)
class Kind:
    """A change. `change` makes another program of one whose first branch is `suited`, as `every` branch and `program`.

    Without `refused` the next run continues, with the same result as without the change, or with `result`. Otherwise it
    is refused as TX403, in a line with `refused`. With `accept_changes` it continues then, with `result`, or is refused
    again: `for_good` is the code and a part of the line. The same holds for `in_flight`, while a batch in flight has
    records of the first stream, and for `unsent`, while transactions wait in the outbox.
    """

    name: str
    change: Callable[[Program, Random], Program]
    refused: str = ""
    result: str = SAME
    for_good: str = ""
    in_flight: str = ""
    unsent: str = ""
    suited: Mapping[str, Any] = field(default_factory=dict)
    every: Mapping[str, Any] = field(default_factory=dict)
    is_trident: bool | None = None
    streams: int = 1
    program: Mapping[str, Any] = field(default_factory=dict)
    places: tuple[str, ...] = PLACES
    fixed: tuple[str, ...] = ()
    """Places whose tables can't be changed so: a start with the change is refused there as TX101."""
    world: str = "order"
    """The name of one of `WORLDS`."""
    by_target: bool = False
    """True if a sink's target refuses the change, which comes after the tables are fenced."""

    def final(self, place: str) -> str:
        """Return the code and a part of the line if a place refuses the accepted change, "" if it does not."""
        return STATE if place in self.fixed else self.for_good

    def needs(self) -> Mapping[str, Any]:
        """Return the requirements of programs that the change suits."""
        shape = {} if self.is_trident is None else {"is_trident": self.is_trident}
        return {**shape, **self.program, **self.every, **self.suited}


def add_field(program: Program, random: Random) -> Program:
    """Add a field to the sources and behind every step."""
    return replace_fields(program, (*program.sources[0].fields, ("extra", "long")), {"extra": "n"}, {}, "extra")


def replace_fields(
    program: Program, fields: Any, holds: Mapping[str, str], new_names: Mapping[str, str], *more: str
) -> Program:
    """Give all sources other fields, and rename or add them behind every step."""
    sources = tuple(replace(source, fields=fields, holds={**source.holds, **holds}) for source in program.sources)
    branches = tuple(
        replace(branch, outputs=(*(new_names.get(name, name) for name in branch.outputs), *more))
        for branch in program.branches
    )
    return replace(program, sources=sources, branches=branches)


def retype(field_name: str, new_type: str) -> Callable[[Program, Random], Program]:
    """Return the change of a field to another type, in all sources."""

    def change(program: Program, random: Random) -> Program:
        fields = tuple((name, new_type if name == field_name else type_) for name, type_ in program.sources[0].fields)
        return replace(program, sources=tuple(replace(source, fields=fields) for source in program.sources))

    return change
