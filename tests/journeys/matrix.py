"""What an operator can do with each source and each kind of state: the cells that the journeys hold, and a page shows.

A cell works, is refused in one line, or does not apply. `python tools/make_reference.py` writes the tables of
docs/command-matrix.md from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """What a cell says."""

    WORKS = "works"
    REFUSED = "refused"
    NONE = "n.a."


@dataclass(frozen=True, slots=True)
class Cell:
    """`why` is what of the line is always there, or why nothing applies."""

    outcome: Outcome
    why: str = ""


WORKS = Cell(Outcome.WORKS)


def refused(line: str) -> Cell:
    return Cell(Outcome.REFUSED, line)


def none(why: str) -> Cell:
    return Cell(Outcome.NONE, why)


QUEUE = "`QueueSpout`"
BOLTS = "two spouts, of bolts"
SOURCES = (
    *("Kafka, opaque", "Kafka, transactional", "Kafka, Avro"),
    *("two streams", "two streams, one idle", "memory", "contract", BOLTS, QUEUE),
)
DELTA = ("merge layout", "log layout")
DATABASES = ("SQLite", "PostgreSQL", "Redis")
STATES = (*DELTA, *DATABASES)
KAFKA_SINK, DELTA_SINK, SENDING_SINK = "`KafkaSink`", "`DeltaSink`", "`KafkaSink`, at least once"
SINKS = (KAFKA_SINK, DELTA_SINK)
"""The sinks of topologies that are exactly once. One that is at least once is in the journey over a queue."""

COMMANDS = (
    *(
        "run",
        "run --close-windows",
        "restart after kill -9",
        "standby takes over",
        "status, txns, describe",
        "savepoint",
    ),
    *("rewind by a transaction", "rewind further", "verify", "verify --count-records", "verify --sinks"),
    *("doctor --repair", "deadletters --replay, of a bolt", "deadletters --replay, of the source", "reset", "query"),
    *("read", "read --as-of", "console", "examine", "metrics", "lag", "--log json"),
)

_NO_RECORDS = none("what it reads are tuples already")
_UNCOUNTED = refused("--count-records needs a Kafka source")
_HANDED_OUT_ONCE = refused("is a queue that hands a message out once, so nothing can be read again")
_STATELESS = none("at least once no state is kept")
_NO_WINDOWS = none("at least once there are no windows")
_NO_LAG = none("the spout does not say what is left to read")
BY_SOURCE: Mapping[tuple[str, str], Cell] = {
    **{("verify --count-records", source): _UNCOUNTED for source in ("memory", "contract", QUEUE)},
    **{("deadletters --replay, of the source", source): _NO_RECORDS for source in ("memory", "contract", QUEUE)},
    **{("lag", source): _NO_LAG for source in ("contract", QUEUE)},
    **{(command, QUEUE): _HANDED_OUT_ONCE for command in ("savepoint", "rewind by a transaction", "rewind further")},
    **{(command, QUEUE): _STATELESS for command in ("query", "read", "read --as-of")},
    ("run --close-windows", QUEUE): _NO_WINDOWS,
    ("query", BOLTS): none("queries belong to streams"),
    ("doctor --repair", QUEUE): none("no table says what a lost store knew"),
    ("deadletters --replay, of a bolt", QUEUE): none("what has failed is given back to the queue"),
}
INTO_STATE: Mapping[tuple[str, str], Cell] = {(QUEUE, state): _HANDED_OUT_ONCE for state in STATES}
"""Whether the tuples of a source can be counted in a kind of state, where it does not work."""
_NO_HISTORY = refused("it keeps a state that has no history")
_KEEPS_ONE = refused("and knows only what was before it: it can't go back to transaction")
BY_STATE: Mapping[tuple[str, str], Cell] = {
    **{("rewind further", state): _KEEPS_ONE for state in DATABASES},
    **{("read --as-of", state): _NO_HISTORY for state in DATABASES},
}
BY_SINK: Mapping[tuple[str, str], Cell] = {}
"""A rewind of a topic is accepted with --accept-sent: what is computed again is sent again."""


def cell(command: str, source: str, states: Iterable[str] = (), sink: str = "") -> Cell:
    """What a command does with a source and a topology whose tables are of these kinds, and which may have a sink."""
    states = tuple(states)
    exceptions = [
        *(INTO_STATE.get((source, state)) for state in states),
        BY_SOURCE.get((command, source)),
        BY_SINK.get((command, sink)),
        *(BY_STATE.get((command, state)) for state in states),
    ]
    return next((each for each in exceptions if each is not None), WORKS)


JOURNEYS_TO_SINKS = (
    *(("Kafka, opaque", DELTA, KAFKA_SINK), ("Kafka, Avro", DATABASES, KAFKA_SINK)),
    *(("two streams", DATABASES, KAFKA_SINK), ("contract", DELTA, KAFKA_SINK), (BOLTS, DATABASES, KAFKA_SINK)),
    *(("Kafka, opaque", DATABASES, DELTA_SINK), ("contract", DELTA, DELTA_SINK), (BOLTS, DATABASES, DELTA_SINK)),
)
"""Of each kind of sink with each command and each kind of state."""
JOURNEYS = (
    *((source, states, "") for source in SOURCES if source != QUEUE for states in (DELTA, DATABASES)),
    *JOURNEYS_TO_SINKS,
)
"""Sixteen journeys, which have all commands and so meet each pair of them, and those to sinks. See also the queue's."""
