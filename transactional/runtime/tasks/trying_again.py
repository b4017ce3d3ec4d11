"""Retried dead letters: from the table to a tuple of the stream as it is declared today, or why not.

The decisions here depend only on the topology and the letter, so every task and every attempt decides alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from transactional.core.ports import DeadLetter
from transactional.core.ports.dead_letters import values_from_json
from transactional.core.ports.stream_names import current_origin
from transactional.model.arrow import arrow_schema, batch_from_rows
from transactional.model.arrow.conversions import fit_value
from transactional.model.errors import CorruptRecord, SchemaMismatch
from transactional.model.groupings import Grouping, GroupingKind
from transactional.model.letters import Exclusion, Letter
from transactional.runtime.tasks.program import TaskProgram


def letter_today(program: TaskProgram, letter: Letter) -> Letter:
    """A letter of a recorded batch, with the names that its origin has today."""
    spout = program.spout
    source, stream = current_origin(letter.source, letter.stream, spout.id, spout.outputs, program.bolts)
    is_record = letter.component == letter.source
    return replace(letter, component=source if is_record else letter.component, source=source, stream=stream)


def batch_of_letter(program: TaskProgram, letter: Letter) -> pa.RecordBatch | str:
    """The tuple of a dead letter, as its source emits it today; or the reason why there is none."""
    name = f"dead letter {letter.txid}:{letter.number}"
    if subscription(program, letter) is None:
        return (
            f"{name} is for bolt {letter.component!r}, from {letter.source!r}, stream {letter.stream!r}: topology "
            f"{program.topology_id!r} no longer has such a subscription"
        )
    schema = arrow_schema(program.outputs_of(letter.source)[letter.stream])
    try:
        values = values_from_json(letter.values)
        if missing := [field for field in schema.names if field not in values]:
            return f"{name} lacks {', '.join(missing)}; {letter.source!r} emits {', '.join(schema.names)} now"
        row = tuple(fit_value(field.type, values[field.name]) for field in schema)
        return batch_from_rows([row], schema, component=letter.source)
    except (CorruptRecord, SchemaMismatch, TypeError, ValueError) as error:
        return f"{name} does not match what {letter.source!r} emits now: {error}"


def refused_letters(program: TaskProgram, letters: Iterable[Letter]) -> list[DeadLetter]:
    """Those that are not tuples today: each becomes a new dead letter, with the reason. The current reader decides
    about letters of the spout's own records."""
    refused = []
    for letter in letters:
        reason = "" if letter.component == program.spout.id else batch_of_letter(program, letter)
        if isinstance(reason, str) and reason:
            refused.append(returned(letter, reason))
    return refused


def returned(letter: Letter, reason: str) -> DeadLetter:
    """The letter as a new one."""
    return DeadLetter(Exclusion(letter.component, "", reason), letter.source, letter.stream, letter.values)


def subscription(program: TaskProgram, letter: Letter) -> Grouping | None:
    """How the bolt of a letter receives its stream; None if it does not today."""
    bolt = program.bolts.get(letter.component)
    return None if bolt is None else bolt.input(letter.source, letter.stream)


def makes_letters(grouping: Grouping | None, task: int) -> bool:
    """Whether this task of a bolt makes the letters of a stream's tuples: with `all_grouping` each of them reaches
    every task, and is still one letter."""
    return task == 0 or grouping is None or grouping.kind is not GroupingKind.ALL


def takes_letters(grouping: Grouping | None, task: int) -> bool:
    """Whether this task of a bolt receives the letters of a stream: every one with `all_grouping`, otherwise task 0,
    because the task that set them aside is unknown."""
    return task == 0 or (grouping is not None and grouping.kind is GroupingKind.ALL)
