"""Makes dead letters of messages that have failed as often as allowed, and messages of letters that are retried.

A message has only its position, so it is read from the source once more for the values of the letter.
"""

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
    """Return a dead letter of the spout for each message, with its position in the source and the values of its
    tuple."""
    reader, spout = topology.spout.reader(), topology.spout_id
    return [
        DeadLetter(
            Exclusion(spout, "", message.error), spout, DEFAULT_STREAM, values_to_json(_read_values(reader, message))
        )
        for message in messages
    ]


def messages_of_letters(letters: Iterable[Letter]) -> tuple[PendingMessage, ...]:
    """Return the messages of retried letters. Raises `CorruptRecord` for a letter without a position."""
    return tuple(parse_position(values_from_json(letter.values).get(MESSAGE), letter.error) for letter in letters)


def _read_values(reader: PartitionReader, message: PendingMessage) -> dict[str, Any]:
    values: dict[str, Any] = {MESSAGE: format_position(message)}
    offsets = OffsetRange(message.offset, Offset(message.offset + 1))
    for batch in reader.read(message.partition, offsets):
        for row in batch.to_pylist():
            values |= row
    return values
