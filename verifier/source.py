"""Checks the topics that were read, with the checker's own consumer: that they are the same, and what ranges hold.

Offsets are always compared. With `reads_records` the records of every range that still exists are counted again, which
reads the topics once.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from verifier.evidence.findings import CheckImpossible, Findings, Kind
from verifier.evidence.store import StoreHistory
from verifier.transactions import Partition, format_partition

BATCH_RECORDS = 10_000
POLL_S = 0.1
FETCHED_AHEAD_KB = 8_192
"""How much is fetched in vain from a partition that continues after what was read."""


class SourceUnreadable(CheckImpossible):
    """The source does not respond, or can't be read."""


ISOLATION: Final = "isolation.level"
"""An option of consumers alone."""


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A Kafka cluster. `options` are librdkafka's, those of a consumer too. `reads_records`: count the records of every
    existing range.

    With `leaves_out` a record may have made no tuple: it was skipped, or set aside.
    `prefix` is what the store has in front of the names of its topics: which of several sources a partition is of.
    """

    bootstrap_servers: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    timeout_s: float = 10.0
    reads_records: bool = False
    prefix: str = ""
    leaves_out: bool = False

    def topic_of(self, name: str) -> str:
        """Return the topic of a partition, given the name of its source in the store."""
        return topic_of(name.removeprefix(self.prefix))

    def settings(self) -> dict[str, Any]:
        """Return the settings of any client."""
        options = {name: option for name, option in self.options.items() if name != ISOLATION}
        return {"log_level": 0, **options, "bootstrap.servers": self.bootstrap_servers}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The offsets that a partition holds now: `start <= offset < end`."""

    start: int
    end: int


def _format_unreadable(source: KafkaSource, error: KafkaException) -> str:
    return f"Kafka at {source.bootstrap_servers} does not respond: {error}. Check that it is running and reachable"


def read_states(source: KafkaSource, partitions: Sequence[Partition]) -> dict[Partition, PartitionState | None]:
    """Return the current state of partitions. None for one that does not exist, or whose topic was recreated.

    Raises `SourceUnreadable`.
    """
    ids = _read_topic_ids(source, sorted({source.topic_of(name) for name, _ in partitions}))
    consumer = _create_consumer(source)
    try:
        return {partition: _read_state(consumer, source, partition, ids) for partition in partitions}
    except KafkaException as error:
        raise SourceUnreadable(_format_unreadable(source, error)) from error
    finally:
        consumer.close()


def group_by_source(
    sources: Sequence[KafkaSource], partitions: Iterable[Partition]
) -> list[tuple[KafkaSource, list[Partition]]]:
    """Return the partitions of each source, sorted. A partition belongs to the source with the longest prefix of its
    name. One without a stream in its name belongs to the first source, which is the only one."""
    parts: dict[str, list[Partition]] = {source.prefix: [] for source in sources}
    for partition in sorted(partitions):
        is_named = "/" in partition[0]
        prefixes = [prefix for prefix in parts if partition[0].startswith(prefix) and bool(prefix) == is_named]
        if prefixes or not is_named:
            parts[max(prefixes, key=len, default=sources[0].prefix)].append(partition)
    return [(source, parts[source.prefix]) for source in sources]


def check_source(
    sources: Sequence[KafkaSource],
    history: StoreHistory,
    states: Mapping[Partition, PartitionState | None],
    findings: Findings,
) -> None:
    """Check that the committed ranges can come from the existing topics; if requested, their records."""
    last = history.committed[-1].ranges if history.committed else {}
    for partition, (_, until, _) in last.items():
        state = states.get(partition)
        if partition in states and state is None and history.replays_exactly:
            findings.add(
                Kind.SOURCE_CHANGED, format_partition(partition), "the topic that was read", "gone or recreated"
            )
        elif partition in states and state is None:
            findings.note(
                f"{format_partition(partition)}: the topic is gone, or was recreated; "
                "what was read from it was not checked"
            )
        elif state is not None and until > state.end:
            findings.add(
                Kind.SOURCE_CHANGED, format_partition(partition), f"offsets up to {until}", f"they end at {state.end}"
            )
    for source, partitions in group_by_source(sources, states):
        for partition in partitions if source.reads_records else ():
            state = states[partition]
            if state is not None:
                _check_records(source, partition, state, history, findings)
    if not all(source.reads_records for source in sources):
        findings.note("the records of the source were not counted again, only its offsets were checked")


def _check_records(
    source: KafkaSource,
    partition: Partition,
    state: PartitionState,
    history: StoreHistory,
    findings: Findings,
) -> None:
    ranges = [(batch.ranges[partition], batch.txid) for batch in history.committed if partition in batch.ranges]
    existing = [
        (offsets, txid)
        for offsets, txid in ranges
        if offsets[0] >= state.start and offsets[1] <= state.end and offsets[1] > offsets[0]
    ]
    if len(existing) < sum(offsets[1] > offsets[0] for offsets, _ in ranges):
        findings.note(
            f"{format_partition(partition)}: the source no longer holds all that was read; the rest was counted"
        )
    if not existing:
        return
    counts = _count_records(source, partition, [offsets[0] for offsets, _ in existing], existing[-1][0][1])
    left_out = compacted = 0
    may_lack = not history.replays_exactly and counts.total() < sum(offsets[2] or 0 for offsets, _ in existing)
    is_compacted = may_lack and _is_compacted(source, partition)
    for number, ((start, until, records), txid) in enumerate(existing):
        findings.add_checked("records of the source", counts[number])
        surplus = counts[number] - (records or 0)
        if surplus > 0 and source.leaves_out:
            left_out += surplus
        elif surplus < 0 and is_compacted:
            compacted -= surplus
        elif surplus:
            place = f"transaction {txid}, {format_partition(partition)}, [{start}, {until})"
            findings.add(Kind.WRONG_RECORDS, place, f"{records or 0} records, as were read", counts[number])
    if left_out:
        reason = "the translator skips such, or sets them aside"
        findings.note(f"{format_partition(partition)}: {left_out} records made no tuple: {reason}")
    if compacted:
        findings.note(
            f"{format_partition(partition)}: {compacted} records that were read are no longer there: "
            "the topic is compacted"
        )


def _is_compacted(source: KafkaSource, partition: Partition) -> bool:
    """Return whether Kafka compacts the topic: it deletes records once later ones have their keys."""
    resource = ConfigResource(ResourceType.TOPIC, source.topic_of(partition[0]))
    admin = AdminClient(source.settings())
    [answer] = admin.describe_configs([resource], request_timeout=source.timeout_s).values()
    try:
        return "compact" in str(answer.result()["cleanup.policy"].value)
    except KafkaException as error:
        raise SourceUnreadable(
            f"whether {format_partition(partition)} is compacted can't be found out: {error}"
        ) from error


def _count_records(source: KafkaSource, partition: Partition, starts: Sequence[int], end: int) -> Counter[int]:
    """Return the number of records of each range, by its index. Records of a gap count for the range before it."""
    consumer = _create_consumer(source)
    counts: Counter[int] = Counter()
    topic, index = source.topic_of(partition[0]), partition[1]
    try:
        consumer.assign([TopicPartition(topic, index, starts[0])])
        position, quiet_since_s = starts[0], time.monotonic()
        while position < end:
            # Returns after `POLL_S` with fewer records, for example where offsets have no record.
            messages = consumer.consume(min(BATCH_RECORDS, end - position), POLL_S)
            offsets = [int(message.offset() or 0) for message in messages if message.error() is None]
            counts.update(bisect_right(starts, offset) - 1 for offset in offsets if offset < end)
            [consumed] = consumer.position([TopicPartition(topic, index)])
            if messages or consumed.offset > position:
                quiet_since_s = time.monotonic()
            elif time.monotonic() - quiet_since_s > source.timeout_s:
                raise SourceUnreadable(f"{format_partition(partition)} returns nothing from offset {position} on")
            position = max(position, consumed.offset)
        return counts
    except KafkaException as error:
        raise SourceUnreadable(f"{format_partition(partition)} can't be read: {error}") from error
    finally:
        consumer.close()


def topic_of(source: str) -> str:
    """Return the topic of a source, whose name is `topic` or `topic#beginning of its id`."""
    return source.partition("#")[0]


def format_topic_id(topic_id: str) -> str:
    """Return a topic's id as Kafka's tools and our stores write it. The library writes it in plain base64."""
    return topic_id.replace("/", "_").replace("+", "-")


def _read_topic_ids(source: KafkaSource, topics: Sequence[str]) -> dict[str, str | None]:
    """Return the id of each topic, None if it has none or does not exist."""
    ids: dict[str, str | None] = {}
    if not topics:
        return ids
    admin = AdminClient(source.settings())
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=source.timeout_s)
    for topic, future in answers.items():
        try:
            ids[topic] = format_topic_id(str(future.result().topic_id))
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise SourceUnreadable(_format_unreadable(source, error)) from error
            ids[topic] = None
    return ids


def _read_state(
    consumer: Consumer, source: KafkaSource, partition: Partition, ids: Mapping[str, str | None]
) -> PartitionState | None:
    topic, recorded_id = source.topic_of(partition[0]), partition[0].partition("#")[2]
    current_id = ids.get(topic)
    if current_id is None or (recorded_id and not current_id.startswith(recorded_id)):
        return None
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition[1]), timeout=source.timeout_s)
    return PartitionState(low, high)


def _create_consumer(source: KafkaSource) -> Consumer:
    return Consumer(
        {
            "queued.max.messages.kbytes": FETCHED_AHEAD_KB,
            **source.settings(),
            "group.id": "transactional-verify",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
            ISOLATION: source.options.get(ISOLATION, "read_committed"),
        }
    )
