"""The kinds of change that are made between two runs, and what comes of each: the table of docs/howto/change.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from tests.changes.kind import FIELDS, ONWARDS, PLAIN, SENT_FIELDS, STATE, Kind, add_field, replace_fields, retype
from tests.changes.places import DURABLE
from tests.changes.program import Program
from tests.changes.sink_kinds import SINK_KINDS
from transactional.core.ports import StateKind

WORLDS = {"order": 22, "windows": 0, "windows by count": 0, "key": 0, "names": 0, "meaning": 0, "sinks": 0}
"""The worlds that `make check` has, in each of which several changes are made, with their seeds."""


def with_others(kind: Kind, random: Random) -> list[Kind]:
    """A change, and up to two others that are made at once."""
    found = [kind]
    for other in random.sample(KINDS, random.randint(0, 2)):
        is_accepted = other.refused and not other.for_good
        if other not in found and not is_accepted and _go_together([*found, other]):
            found.append(other)
    return found


def _go_together(kinds: Sequence[Kind]) -> bool:
    """Whether there are programs that all of the changes can be made to."""
    needs = [need for kind in kinds for need in kind.needs().items()]
    is_trident = any(kind.streams > 1 for kind in kinds)
    return not (is_trident and ("is_trident", False) in needs) and len(dict(needs)) == len({*needs})


def _shuffled(names: Any, random: Random) -> tuple[Any, ...]:
    """In another order."""
    names = tuple(names)
    found = tuple(random.sample(names, len(names)))
    return found if found != names else names[::-1]


# --- order ------------------------------------------------------------------------------------------------------------


def _streams(program: Program, random: Random) -> Program:
    return replace(program, sources=_shuffled(program.sources, random))


def _branches(program: Program, random: Random) -> Program:
    return replace(program, branches=_shuffled(program.branches, random))


def _reads(program: Program, random: Random) -> Program:
    return program.with_first(reads=_shuffled(program.first.reads, random))


def _outputs(program: Program, random: Random) -> Program:
    return program.with_first(outputs=_shuffled(program.first.outputs, random))


def _columns(program: Program, random: Random) -> Program:
    return program.with_first(columns=_shuffled(program.first.columns, random))


def _key_order(program: Program, random: Random) -> Program:
    return program.with_first(key=_shuffled(program.first.key, random))


def _source_fields(program: Program, random: Random) -> Program:
    return program.with_source(fields=_shuffled(program.sources[0].fields, random))


def _parallelism(program: Program, random: Random) -> Program:
    return replace(program, parallelism=3 - program.parallelism)


def _batches(program: Program, random: Random) -> Program:
    return replace(program, take=program.take + 2, pending=3 - program.pending)


def _ids(program: Program, random: Random) -> Program:
    return replace(program, prefix="renamed")


# --- names ------------------------------------------------------------------------------------------------------------


def _stream_name(program: Program, random: Random) -> Program:
    old = program.sources[0].name
    branches = tuple(
        replace(each, reads=tuple("site" if name == old else name for name in each.reads)) for each in program.branches
    )
    return replace(program.with_source(name="site"), branches=branches)


def _committer_name(program: Program, random: Random) -> Program:
    before = program.first
    return program.with_first(name="renamed", table=before.table_name)


def _committer_and_table(program: Program, random: Random) -> Program:
    return program.with_first(name="anew")


def _another_table(program: Program, random: Random) -> Program:
    return program.with_first(table="elsewhere")


def _another_committer(program: Program, random: Random) -> Program:
    before = program.first
    return replace(program, branches=(*program.branches, replace(before, name="more")))


def _no_committer(program: Program, random: Random) -> Program:
    return replace(program, branches=tuple(each for each in program.branches if each != program.first))


def _column_name(program: Program, random: Random) -> Program:
    (name, *rest), *others = program.first.columns
    return program.with_first(columns=((f"{name}_2", *rest), *others))


def _another_column(program: Program, random: Random) -> Program:
    return program.with_first(columns=(*program.first.columns, ("highest", "max", "n")))


def _no_column(program: Program, random: Random) -> Program:
    return program.with_first(columns=program.first.columns[1:])


def _field_name(program: Program, random: Random) -> Program:
    """Of a field that is in no table."""
    fields = tuple(("points" if name == "m" else name, type_) for name, type_ in program.sources[0].fields)
    return replace_fields(program, fields, {"points": "m"}, {"m": "points"})


# --- types and meanings -----------------------------------------------------------------------------------------------


def _aggregate(*column: str) -> Callable[[Program, Random], Program]:
    def change(program: Program, random: Random) -> Program:
        return program.with_first(
            columns=tuple(column if each[0] == column[0] else each for each in program.first.columns)
        )

    return change


def _branch(**changed: Any) -> Callable[[Program, Random], Program]:
    return lambda program, random: program.with_first(**changed)


def _program(**changed: Any) -> Callable[[Program, Random], Program]:
    return lambda program, random: replace(program, **changed)


def _topic(program: Program, random: Random) -> Program:
    return program.with_source(topic="orders")


COUNTED = (("count", "count", ""), ("total", "sum", "n"))
EXTREME = (("count", "count", ""), ("extreme", "min", "n"))
BY_TWO = {"key": ("word", "place")}
BY_NUMBER = {"key": ("word", "m")}
TIMED = {"window": "tumbling"}
BY_COUNT = {"window": "count"}
OTHER_TIME = "it continues by the other field"
OF_IT = "committers.first."
EXACT = {"kind": StateKind.OPAQUE, "is_opaque": False, "has_letters": False}

OPEN = "TX403 open windows of"

KINDS = (
    # Order, and how it is run.
    Kind("the order of streams", _streams, streams=3, is_trident=True),
    Kind("the order of bolts and committers", _branches),
    Kind("the order of inputs", _reads, streams=2, is_trident=True),
    Kind("the order of a bolt's output fields", _outputs),
    Kind("the order of a windowed bolt's input fields", _outputs, suited=TIMED, is_trident=False, world="windows"),
    Kind("the order of value columns", _columns),
    Kind("the order of key columns", _key_order, suited=BY_TWO, is_trident=True),
    Kind(
        "the order of a windowed bolt's key",
        _key_order,
        suited=TIMED | BY_TWO,
        is_trident=False,
        world="windows",
    ),
    Kind("the order of a source's fields", _source_fields),
    Kind("parallelism", _parallelism),
    Kind("batch sizes, transactions in flight", _batches),
    Kind("ids of bolts that are not committers", _ids, is_trident=False, world="windows"),
    Kind("another committer, with a table of its own", _another_committer, result=ONWARDS, suited=PLAIN),
    Kind("`max_delay`", _program(max_delay_s=30), result="it counts from the next batch"),
    # Names.
    Kind(
        "the name of a stream",
        _stream_name,
        "spout.",
        "it is a new stream, read from its start",
        is_trident=True,
        every=PLAIN,
        in_flight="TX403 has records of stream",
        world="names",
    ),
    Kind(
        "the name of a committer", _committer_name, OF_IT, for_good="TX404 ", every=PLAIN, places=DURABLE, world="names"
    ),
    Kind(
        "the names of a committer and of its table", _committer_and_table, OF_IT, ONWARDS, suited=PLAIN, world="names"
    ),
    Kind("the table of a committer", _another_table, OF_IT, for_good="TX404 ", suited=PLAIN),
    Kind("the name of a value column", _column_name, "first.values", for_good=STATE, suited=PLAIN),
    Kind(
        "a value column is added",
        _another_column,
        "first.values",
        "it is NULL in the existing rows",
        fixed=("redis",),
        suited=PLAIN,
        world="meaning",
    ),
    Kind("a value column is removed", _no_column, "first.values", for_good=STATE, suited=PLAIN),
    # Types.
    Kind(
        "the type of a field that nothing keeps",
        retype("m", "int"),
        FIELDS,
        every={"outputs": SENT_FIELDS},
        world="key",
    ),
    Kind("the type of an aggregated field", retype("n", "double"), FIELDS, for_good=STATE, every=PLAIN),
    Kind("the type of a key", retype("m", "int"), FIELDS, for_good=STATE, suited=BY_NUMBER, every=PLAIN, world="names"),
    Kind(
        "the type of a field that a windowed bolt keeps",
        retype("m", "int"),
        "windows whose field 'm'",
        for_good="TX403 windows whose field 'm'",
        suited=TIMED,
        is_trident=False,
        world="windows",
    ),
    # Aggregates and keys.
    Kind(
        "another aggregate in a column (a minimum, a maximum)",
        _aggregate("extreme", "max", "n"),
        "combined by",
        for_good="TX403 combined by",
        suited={"columns": EXTREME} | PLAIN,
        world="key",
    ),
    Kind(
        "an aggregate of another field",
        _aggregate("total", "sum", "m"),
        "aggregates.total",
        result="it continues with the other field",
        suited=PLAIN | {"columns": COUNTED},
        world="meaning",
    ),
    Kind(
        "a sum in the place of a count",
        _aggregate("count", "sum", "m"),
        "aggregates.count",
        result="it continues with the sum",
        suited=PLAIN,
        world="meaning",
    ),
    Kind(
        "another key",
        _branch(key=("place",)),
        "first.key",
        for_good=STATE,
        suited={"key": ("word",)} | PLAIN,
        world="key",
    ),
    Kind(
        "the kind of a state",
        _program(kind=StateKind.TRANSACTIONAL),
        "first.kind",
        program=EXACT,
        every=PLAIN,
        world="key",
    ),
    # Windows.
    Kind(
        "the length of windows",
        _branch(window="longer"),
        "open windows of",
        for_good=OPEN,
        suited=TIMED,
        world="windows",
    ),
    Kind(
        "windows that overlap",
        _branch(window="sliding"),
        "open windows of",
        for_good=OPEN,
        suited=TIMED,
        world="windows",
    ),
    Kind(
        "windows by count in place of time",
        _branch(window="count"),
        "open windows of",
        for_good=OPEN,
        suited=TIMED,
        world="windows",
    ),
    Kind(
        "the length of windows by count",
        _branch(window="more"),
        "open windows of",
        for_good=OPEN,
        suited=BY_COUNT,
        world="windows by count",
    ),
    Kind(
        "the order of the key of a windowed bolt that counts",
        _key_order,
        "open windows of",
        for_good=OPEN,
        suited=BY_COUNT | BY_TWO,
        is_trident=False,
        world="windows by count",
    ),
    Kind("no windows any more", _branch(window=""), OF_IT, for_good=OPEN, suited=TIMED, world="windows"),
    Kind(
        "the field with the time of windows",
        _branch(time="seen"),
        "window_time",
        OTHER_TIME,
        suited=TIMED,
        world="windows",
    ),
    Kind(
        "the key of a windowed bolt",
        _branch(key=("place",)),
        "open windows of",
        for_good=OPEN,
        suited=TIMED | BY_TWO,
        is_trident=False,
        world="windows",
    ),
    Kind(
        "the event time of a source",
        _program(event_time="seen"),
        "event_times",
        OTHER_TIME,
        suited=TIMED,
        world="windows",
    ),
    Kind(
        "the zone of times without one (`naive_times`)",
        _program(naive_times="Europe/Berlin"),
        "naive_times",
        "times without a zone are read in that zone from then on",
        is_trident=False,
        world="meaning",
    ),
    # The source, and what is gone.
    Kind("the name of a source's field that no table has", _field_name, FIELDS, world="windows by count"),
    Kind("a source's field is added", add_field, FIELDS, world="windows by count"),
    Kind("a source's topic", _topic, "topics", "the other topic is read from its start", every=PLAIN, world="meaning"),
    Kind("a committer is removed", _no_committer, OF_IT, "its table stays as it is", world="meaning"),
    *SINK_KINDS,
)
