"""The page docs/command-matrix.md, which shows the matrix of the journeys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tests.journeys.matrix import COMMANDS, INTO_STATE, QUEUE, SINKS, SOURCES, STATES, Cell, Outcome, cell

HEADING = "# Every command, over every source, into every state"
ABOUT = """\
`tests/journeys/` travels with a topology from its first run to a store that is lost and restored, over a real broker
and into real tables. After each step the tables equal a plain model, and neither the doctor nor `verify` finds
anything. Refusals are tried, too. `make test-all` tries each pair of a command, a source and a kind of table in
sixteen journeys and one over a queue, `make proof` each combination of the three:"""


def matrix_page() -> str:
    """Both tables, with the reasons of whatever is refused."""
    by_source = {(command, source): cell(command, source) for command in COMMANDS for source in SOURCES}
    by_state = {(command, state): cell(command, SOURCES[0], (state,)) for command in COMMANDS for state in STATES}
    by_sink = {(command, sink): cell(command, SOURCES[0], sink=sink) for command in COMMANDS for sink in SINKS}
    every = (*by_source.values(), *by_state.values(), *by_sink.values())
    reasons = list(dict.fromkeys(each for each in every if each.why))
    whole = Counter(each.outcome for each in all_cells())
    works, refused, none = (whole[outcome] for outcome in Outcome)
    into = next(iter(INTO_STATE.values()))
    return "\n".join(
        [
            HEADING,
            "",
            *ABOUT.splitlines(),
            f"{works} work, {refused} are refused in one line, and {none} do not apply.",
            "",
            *table(SOURCES, by_source, reasons),
            "",
            "The same by where the tables are, over any of the sources:",
            "",
            *table(STATES, by_state, reasons),
            "",
            "And with a sink besides the tables, over any of the sources, in eight more journeys. With a `KafkaSink`",
            "a rewind needs `--accept-sent`, and sends again what is computed again. `doctor --repair` ends with a",
            "rewind if a sink has published less than the tables have, or is refused. A topology that is at least once",
            "has its sink in a journey over a queue.",
            "",
            *table(SINKS, by_sink, reasons),
            "",
            *(f"{number}. {shown(each)}" for number, each in enumerate(reasons, start=1)),
            "",
            f"No state counts what a {QUEUE} hands out: that is refused ({reasons.index(into) + 1}).",
            "",
        ]
    )


def all_cells() -> Iterable[Cell]:
    """Of each command, source and state; a queue has no state."""
    for command in COMMANDS:
        for source in SOURCES:
            for states in ((),) if source == QUEUE else tuple((state,) for state in STATES):
                yield cell(command, source, states)


def table(columns: Sequence[str], cells: Mapping[tuple[str, str], Cell], reasons: Sequence[Cell]) -> Iterable[str]:
    """The rows of a table."""
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for command in COMMANDS:
        found = [cells[command, column] for column in columns]
        said = [each.outcome.value + (f" ({reasons.index(each) + 1})" if each.why else "") for each in found]
        yield f"| {command} | {' | '.join(said)} |"


def shown(reason: Cell) -> str:
    """Why, in a line."""
    return f"refused: “… {reason.why} …”" if reason.outcome is Outcome.REFUSED else f"not applicable: {reason.why}"
