"""The batch of a transaction: a half-open offset range per partition, and its serialized form.

A `BatchMetadata` says what a transaction reads, without the data. It is recorded in the coordinator's store as JSON
before any attempt starts, so that each replay reads the same. The JSON has a version, and only this one is read. A
batch is a value: it must not change once it is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, NamedTuple, NewType

from transactional.model.errors import ConfigError, CorruptRecord
from transactional.model.facts import BatchFacts, LastSeen, Listed, Listing, StaticVersion
from transactional.model.letters import Exclusion, Letter
from transactional.model.plumbing.redaction import without_login

Offset = NewType("Offset", int)

METADATA_VERSION = 4
"""The version of the JSON form. No other version is read."""


class PartitionId(NamedTuple):
    """A partition of a source: a Kafka topic and partition number, or a spout's name and an index.

    A tuple, because partitions are the keys of every mapping of a batch: they are hashed and compared without Python.
    """

    source: str
    index: int  # type: ignore[assignment]  # hides `tuple.index`, which no partition needs

    def __str__(self) -> str:
        return f"{self.source}[{self.index}]"


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `start <= offset < until` of one partition.

    Half-open, so that an empty range is distinct from a range of one record.
    """

    start: Offset
    until: Offset

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.until:
            raise ValueError(f"an offset range needs 0 <= start <= until, got [{self.start}, {self.until})")

    def __len__(self) -> int:
        return self.until - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.until})"


@dataclass(frozen=True, slots=True)
class Digest:
    """The evidence of what was read from a range: number of records, checksum (CRC-32) of their contents, and size.

    `bytes` is their size as Arrow columns; it determines how large the next batch may be, and is not compared.
    `event_us` is the highest event time among them, in microseconds since 1970, if the spout declares one.
    """

    records: int
    checksum: int
    bytes: int = field(default=0, compare=False)
    event_us: int | None = field(default=None, compare=False)


PortionRow = tuple[str, int, int, int]
"""A portion of a batch that one task reads: source and index of its partition, and the offsets `start` and `until`.

Portions are sent to tasks and back as plain rows, which are pickled and compared without Python.
"""

MessageKey = tuple[PartitionId, Offset]
"""The identity of a message: its partition and its offset."""


@dataclass(frozen=True, slots=True, order=True)
class PendingMessage:
    """A message that has failed and is processed again, by itself: the record at `offset` of a partition.

    `tries` is how often it has failed so far; it waits until `not_before_ms`, in milliseconds since 1970. `error` is
    the reason of its last failure, without logins.
    """

    partition: PartitionId
    offset: Offset
    tries: int
    not_before_ms: int
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", without_login(self.error))

    @property
    def key(self) -> MessageKey:
        """The identity of the message."""
        return self.partition, self.offset


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """The contents of a batch without the data: the input of every attempt at one transaction.

    `ranges` lists every partition seen so far. A partition with nothing new, or one that has disappeared, has an empty
    range, so that positions are always carried forward. `digests` is filled in once the batch has been processed; a
    replay that reads something else is refused.

    `metadata` is the data that a spout stores per partition instead of offsets, as JSON. A range longer than
    `split_records` is split at multiples of it, so that several tasks can read it. `excluded` are tuples set aside as
    dead letters, `letters` are dead letters that are retried: both are part of the recorded batch, so that replays
    agree. So are `facts`, which only the batch before the first one lacks.

    A committed batch also carries data that later ones need: `event_times`, the event times seen so far in each
    partition, and `pending`, the failed messages that wait to be processed again. `again` are the messages of earlier
    batches that this one processes again; `lost` is the number of messages that it gives up. `static_versions` are the
    versions of the static states that it reads, by name. `listed` are the partitions that the source had when the batch
    was planned, and of which no event time was known by then.
    """

    ranges: Mapping[PartitionId, OffsetRange]
    digests: Mapping[PartitionId, Digest] = field(default_factory=dict)
    metadata: Mapping[PartitionId, Any] = field(default_factory=dict)
    split_records: int | None = None
    excluded: tuple[Exclusion, ...] = ()
    letters: tuple[Letter, ...] = ()
    facts: BatchFacts | None = None
    event_times: Mapping[PartitionId, LastSeen] = field(default_factory=dict)
    pending: tuple[PendingMessage, ...] = ()
    again: tuple[PendingMessage, ...] = ()
    lost: int = 0
    static_versions: Mapping[str, StaticVersion] = field(default_factory=dict)
    listed: Mapping[PartitionId, Listed] = field(default_factory=dict)

    @property
    def facts_for_tasks(self) -> BatchFacts | None:
        """The facts that the batch's tasks and commit steps receive: with the versions of static tables."""
        if self.facts is None or not self.static_versions:
            return self.facts
        return replace(self.facts, static_versions=self.static_versions)

    @property
    def is_empty(self) -> bool:
        """True when no partition has an offset to read."""
        return not any(len(offsets) for offsets in self.ranges.values())

    @property
    def offset_count(self) -> int:
        """Number of offsets in all ranges: the number of records, or more if a log has gaps."""
        return sum(len(offsets) for offsets in self.ranges.values())

    @property
    def record_count(self) -> int | None:
        """Number of records that were read; None until the batch has been processed."""
        return sum(digest.records for digest in self.digests.values()) if self.digests else None

    def positions(self) -> dict[PartitionId, Offset]:
        """Return the offset at which the next batch starts, per partition."""
        return {partition: offsets.until for partition, offsets in self.ranges.items()}

    @property
    def sources(self) -> frozenset[str]:
        """The sources of the partitions, which are far fewer."""
        return frozenset(partition.source for partition in self.ranges)

    def non_empty(self) -> Iterator[tuple[PartitionId, OffsetRange]]:
        """Yield the partitions that have offsets to read, with their ranges, sorted."""
        return ((partition, self.ranges[partition]) for partition in sorted(self.ranges) if len(self.ranges[partition]))

    def portions(self) -> Iterator[tuple[PartitionId, OffsetRange]]:
        """Yield the ranges to read, sorted and split by `split_records`: the same for every attempt at this batch."""
        for source, index, start, until in self.portion_rows():
            yield PartitionId(source, index), OffsetRange(Offset(start), Offset(until))

    def portion_rows(self) -> list[PortionRow]:
        """Return the same portions as plain rows, in the same order."""
        rows = sorted((*partition, offsets.start, offsets.until) for partition, offsets in self.ranges.items())
        size = self.split_records
        if size is None:
            return [row for row in rows if row[2] < row[3]]
        return [
            (source, index, max(first, start), min(first + size, until))
            for source, index, start, until in rows
            for first in range(start // size * size, until, size)
            if start < until
        ]

    def with_digests(self, digests: Mapping[PartitionId, Digest]) -> BatchMetadata:
        """Return the same batch, with digests of the records that were read."""
        return replace(self, digests=dict(digests))

    def to_json(self) -> str:
        """Return the batch as JSON, with a row `[source, index, start, until, records, checksum, bytes]` per partition.

        The row ends with the highest event time if there is one.
        """
        document: dict[str, Any] = {}
        if self.metadata:
            document["metadata"] = [[p.source, p.index, self.metadata[p]] for p in sorted(self.metadata)]
        if self.split_records is not None:
            document["split_records"] = self.split_records
        if self.excluded:
            document["excluded"] = [astuple(exclusion) for exclusion in self.excluded]
        if self.letters:
            document["letters"] = [astuple(letter) for letter in self.letters]
        try:
            facts = json.dumps(document | self._facts_as_json())
        except TypeError as error:
            raise ConfigError(f"the metadata of a batch are not JSON: {error}") from error
        head = f'{{"version": {METADATA_VERSION}, "partitions": [{", ".join(self._partition_rows())}]'
        return f"{head}, {facts[1:]}" if facts != "{}" else f"{head}}}"

    def _facts_as_json(self) -> dict[str, Any]:
        """Return the facts, and all other parts that are not empty."""
        parts = {
            "facts": self.facts and _facts_row(self.facts),
            "behind": [[name, *times] for name, times in sorted(self.facts.outer_watermarks.items())]
            if self.facts
            else [],
            "last_rows": [[name, ms] for name, ms in sorted(self.facts.last_row_ms.items())] if self.facts else [],
            "event_times": [[p.source, p.index, *self.event_times[p]] for p in sorted(self.event_times)],
            "listed": [[p.source, p.index, *self.listed[p]] for p in sorted(self.listed)],
            "pending": [_message_row(message) for message in self.pending],
            "again": [_message_row(message) for message in self.again],
            "lost": self.lost,
            "static_versions": {name: self.static_versions[name] for name in sorted(self.static_versions)},
        }
        return {name: value for name, value in parts.items() if value}

    def _partition_rows(self) -> Iterator[str]:
        """Yield the JSON of each partition. Written out, because a batch may have hundreds of them."""
        names = {source: json.dumps(source) for source in self.sources}
        for partition in sorted(self.ranges):
            source, index = partition
            offsets, digest = self.ranges[partition], self.digests.get(partition)
            row = f"{names[source]}, {index}, {offsets.start}, {offsets.until}"
            if digest is None:
                yield f"[{row}, null, null, null]"
            else:
                event_time = "" if digest.event_us is None else f", {digest.event_us}"
                yield f"[{row}, {digest.records}, {digest.checksum}, {digest.bytes}{event_time}]"

    @classmethod
    def from_json(cls, text: str) -> BatchMetadata:
        """Return the batch that `to_json` has written. Raises `CorruptRecord` for any other text."""
        try:
            document = json.loads(text)
            if document["version"] != METADATA_VERSION:
                raise CorruptRecord(
                    f"a batch was recorded in format {document['version']!r}, and this release reads format "
                    f"{METADATA_VERSION} only: start with a new store, and give the states tables of their own"
                )
            return cls._from_document(document)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            problem = f"the recorded batch {str(text)[:200]!r} is not readable: {error!r}"
            raise CorruptRecord(f"{problem}; restore what holds it from a backup") from error

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> BatchMetadata:
        metadata = {
            PartitionId(_parse_text(p), parse_whole_number(i)): value for p, i, value in document.get("metadata", [])
        }
        split = document.get("split_records")
        if split is not None and parse_whole_number(split) < 1:
            raise ValueError(f"split_records is {split}")
        excluded = tuple(Exclusion(*map(_parse_text, row)) for row in document.get("excluded", []))
        letter_rows = document.get("letters", [])
        letters = tuple(
            Letter(parse_whole_number(txid), parse_whole_number(number), *map(_parse_text, texts))
            for txid, number, *texts in letter_rows
        )
        batch = cls._from_rows(document["partitions"])
        batch = replace(batch, metadata=metadata, split_records=split, excluded=excluded, letters=letters)
        return batch._with_facts(document)

    def _with_facts(self, document: Mapping[str, Any]) -> BatchMetadata:
        facts = document.get("facts")
        if facts is not None:
            time_ms, watermark, *previous_values = facts
            behind_rows = document.get("behind", [])
            behind = {
                _parse_text(name): (_number_or_none(us), _number_or_none(previous))
                for name, us, previous in behind_rows
            }
            last_rows = {_parse_text(name): parse_whole_number(ms) for name, ms in document.get("last_rows", [])}
            numbers = map(_number_or_none, (watermark, *previous_values))
            facts = BatchFacts(parse_whole_number(time_ms), *numbers, outer_watermarks=behind, last_row_ms=last_rows)
        times = {
            PartitionId(_parse_text(p), parse_whole_number(i)): LastSeen(*map(parse_whole_number, last_seen))
            for p, i, *last_seen in document.get("event_times", [])
        }
        listed = {
            PartitionId(_parse_text(p), parse_whole_number(i)): _parse_listed(*row)
            for p, i, *row in document.get("listed", [])
        }
        versions = document.get("static_versions", {})
        return replace(
            self,
            facts=facts,
            event_times=times,
            listed=listed,
            pending=tuple(_parse_message(*row) for row in document.get("pending", [])),
            again=tuple(_parse_message(*row) for row in document.get("again", [])),
            lost=parse_whole_number(document.get("lost", 0)),
            static_versions={_parse_text(name): _parse_text(version) for name, version in versions.items()},
        )

    @classmethod
    def _from_rows(cls, rows: list[list[Any]]) -> BatchMetadata:
        ranges: dict[PartitionId, OffsetRange] = {}
        digests: dict[PartitionId, Digest] = {}
        for source, index, start, until, *evidence in rows:
            partition = PartitionId(_parse_text(source), parse_whole_number(index))
            if partition in ranges or len(evidence) not in (3, 4) or len({part is None for part in evidence}) != 1:
                raise ValueError(f"the row of partition {partition} is duplicated or incomplete")
            ranges[partition] = OffsetRange(Offset(parse_whole_number(start)), Offset(parse_whole_number(until)))
            if evidence[0] is not None:
                digests[partition] = Digest(*map(parse_whole_number, evidence))
        return cls(ranges, digests)


def _facts_row(facts: BatchFacts) -> list[int | None]:
    """Return the time and the watermark, followed by those of the previous transaction if there is one."""
    row = [facts.time_ms, facts.watermark_us, facts.previous_time_ms, facts.previous_watermark_us]
    return row if facts.previous_time_ms is not None else row[:2]


def _message_row(message: PendingMessage) -> list[Any]:
    partition, *values = message.partition, message.offset, message.tries, message.not_before_ms, message.error
    return [partition.source, partition.index, *values]


def _parse_message(source: Any, index: Any, offset: Any, tries: Any, not_before_ms: Any, error: Any) -> PendingMessage:
    partition, parsed_offset = (
        PartitionId(_parse_text(source), parse_whole_number(index)),
        Offset(parse_whole_number(offset)),
    )
    return PendingMessage(
        partition, parsed_offset, parse_whole_number(tries), parse_whole_number(not_before_ms), _parse_text(error)
    )


def _parse_listed(time_ms: Any, listing: Any, is_awaited: Any) -> Listed:
    if not isinstance(is_awaited, bool):
        raise ValueError(f"{is_awaited!r} does not say whether a partition is waited for")
    return Listed(parse_whole_number(time_ms), Listing(listing), is_awaited)


def _parse_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text: a source or a version of a static table is named by one")
    return value


def _number_or_none(value: Any) -> int | None:
    return None if value is None else parse_whole_number(value)


def parse_whole_number(value: Any) -> int:
    """Return a value of JSON if it is a whole number. Raises `ValueError` for any other value."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """The maximum size of the next batch if `target_latency_ms` is set: in records, and about in `bytes`.

    `record_bytes` is the average size of the last measured records; None: none were measured. `reason` explains the
    limit in a few words.
    """

    records: int
    record_bytes: int | None
    reason: str

    @property
    def bytes(self) -> int | None:
        """Twice the measured size of that many records: bounds the extra time that larger records take."""
        return None if self.record_bytes is None else 2 * self.records * self.record_bytes

    def __str__(self) -> str:
        return f"limit {self.records} ({self.reason})"


EMPTY_BATCH = BatchMetadata({})
"""The batch before the first one."""
