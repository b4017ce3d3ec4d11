"""Retried dead letters: turns a letter into a tuple of the stream as it is declared now, or says why it can't be one.

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


def with_current_origin(program: TaskProgram, letter: Letter) -> Letter:
    """Return a letter of a recorded batch with the current names of its origin."""
    spout = program.spout
    source, stream = current_origin(letter.source, letter.stream, spout.id, spout.outputs, program.bolts)
    is_record = letter.component == letter.source
    return replace(letter, component=source if is_record else letter.component, source=source, stream=stream)


def batch_of_letter(program: TaskProgram, letter: Letter) -> pa.RecordBatch | str:
    """Return the tuple of a dead letter with the current fields of its source, or the reason why there is none."""
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
    """Return a new dead letter, with the reason, for each letter that can't become a tuple of its stream.

    Letters of the spout's own records are left out: the current reader decides about them.
    """
    refused = []
    for letter in letters:
        reason = "" if letter.component == program.spout.id else batch_of_letter(program, letter)
        if isinstance(reason, str) and reason:
            refused.append(new_letter(letter, reason))
    return refused


def new_letter(letter: Letter, reason: str) -> DeadLetter:
    """Return a new dead letter with the values of an earlier one."""
    return DeadLetter(Exclusion(letter.component, "", reason), letter.source, letter.stream, letter.values)


def subscription(program: TaskProgram, letter: Letter) -> Grouping | None:
    """Return the grouping by which the bolt of a letter receives its stream, or None if it does not subscribe to it."""
    bolt = program.bolts.get(letter.component)
    return None if bolt is None else bolt.input(letter.source, letter.stream)


def makes_letters(grouping: Grouping | None, task: int) -> bool:
    """Return whether this task of a bolt makes the letters of a stream's tuples. With `all_grouping` a tuple reaches
    every task, and only task 0 makes the letter."""
    return task == 0 or grouping is None or grouping.kind is not GroupingKind.ALL


def takes_letters(grouping: Grouping | None, task: int) -> bool:
    """Return whether this task of a bolt receives the letters of a stream: every task with `all_grouping`, otherwise
    task 0, because the task that set them aside is unknown."""
    return task == 0 or (grouping is not None and grouping.kind is GroupingKind.ALL)
