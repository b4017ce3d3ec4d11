"""Messages that have failed as often as they may be retried, as dead letters: read once more, for their values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transactional.core.ports import DeadLetter, PartitionReader
from transactional.core.ports.dead_letters import values_from_json, values_to_json
from transactional.model.batch import Offset, OffsetRange, PendingMessage
from transactional.model.groupings import DEFAULT_STREAM
from transactional.model.letters import Exclusion, Letter
from transactional.model.messages import MESSAGE, format_position, parse_position
from transactional.topology.topology import Topology


def letters_of_messages(topology: Topology, messages: Sequence[PendingMessage]) -> list[DeadLetter]:
    """A letter for each message, from the spout, with its place in the source and the values of its tuple."""
    reader, spout = topology.spout.reader(), topology.spout_id
    return [
        DeadLetter(Exclusion(spout, "", m.error), spout, DEFAULT_STREAM, values_to_json(_values(reader, m)))
        for m in messages
    ]


def messages_of_letters(letters: Iterable[Letter]) -> tuple[PendingMessage, ...]:
    """The messages that such letters are about, to be processed again. Raises `CorruptRecord`."""
    return tuple(parse_position(values_from_json(letter.values).get(MESSAGE), letter.error) for letter in letters)


def _values(reader: PartitionReader, message: PendingMessage) -> dict[str, Any]:
    values: dict[str, Any] = {MESSAGE: format_position(message)}
    offsets = OffsetRange(message.offset, Offset(message.offset + 1))
    for batch in reader.read(message.partition, offsets):
        for row in batch.to_pylist():
            values |= row
    return values
