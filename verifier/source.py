"""The topic that was read, checked with a consumer of the checker's own: is it the same, and what do ranges hold?"""

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
from verifier.transactions import Partition, named

BATCH_RECORDS = 10_000
POLL_S = 0.1
FETCHED_AHEAD_KB = 8_192
"""How much is fetched in vain from a partition that continues after what was read."""


class SourceUnreadable(CheckImpossible):
    """The source does not respond."""


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
        """The topic of a partition's source, as the store names it."""
        return topic_of(name.removeprefix(self.prefix))

    def settings(self) -> dict[str, Any]:
        """Return the settings of any client."""
        of_clients = {name: value for name, value in self.options.items() if name != ISOLATION}
        return {"log_level": 0, **of_clients, "bootstrap.servers": self.bootstrap_servers}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What a partition holds now: the offsets `start <= offset < end`."""

    start: int
    end: int


def _unreadable(source: KafkaSource, error: KafkaException) -> str:
    return f"Kafka at {source.bootstrap_servers} does not respond: {error}. Check that it is running and reachable"


def look(source: KafkaSource, partitions: Sequence[Partition]) -> dict[Partition, PartitionState | None]:
    """The partitions as they are now; None for one that is gone, or whose topic was recreated.

    Raises `SourceUnreadable`.
    """
    ids = _topic_ids(source, sorted({source.topic_of(name) for name, _ in partitions}))
    consumer = _consumer(source)
    try:
        return {each: _state(consumer, source, each, ids) for each in partitions}
    except KafkaException as error:
        raise SourceUnreadable(_unreadable(source, error)) from error
    finally:
        consumer.close()


def of_sources(
    sources: Sequence[KafkaSource], partitions: Iterable[Partition]
) -> list[tuple[KafkaSource, list[Partition]]]:
    """The partitions of each source, sorted: those whose names begin with its prefix, and with no longer one. Those of
    none are the first one's, or the only one's: its partitions are named without the stream."""
    parts: dict[str, list[Partition]] = {source.prefix: [] for source in sources}
    for partition in sorted(partitions):
        is_named = "/" in partition[0]
        own = [prefix for prefix in parts if partition[0].startswith(prefix) and bool(prefix) == is_named]
        if own or not is_named:
            parts[max(own, key=len, default=sources[0].prefix)].append(partition)
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
            findings.add(Kind.SOURCE_CHANGED, named(partition), "the topic that was read", "gone or recreated")
        elif partition in states and state is None:
            findings.note(
                f"{named(partition)}: the topic is gone, or was recreated; what was read from it was not checked"
            )
        elif state is not None and until > state.end:
            findings.add(Kind.SOURCE_CHANGED, named(partition), f"offsets up to {until}", f"they end at {state.end}")
    for source, partitions in of_sources(sources, states):
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
    there = [(r, txid) for r, txid in ranges if r[0] >= state.start and r[1] <= state.end and r[1] > r[0]]
    if len(there) < sum(r[1] > r[0] for r, _ in ranges):
        findings.note(f"{named(partition)}: the source no longer holds all that was read; the rest was counted")
    if not there:
        return
    found = _count(source, partition, [r[0] for r, _ in there], there[-1][0][1])
    left_out = compacted = 0
    may_lack = not history.replays_exactly and found.total() < sum(r[2] or 0 for r, _ in there)
    is_compacted = may_lack and _is_compacted(source, partition)
    for number, ((start, until, records), txid) in enumerate(there):
        findings.looked_at("records of the source", found[number])
        more = found[number] - (records or 0)
        if more > 0 and source.leaves_out:
            left_out += more
        elif more < 0 and is_compacted:
            compacted -= more
        elif more:
            where = f"transaction {txid}, {named(partition)}, [{start}, {until})"
            findings.add(Kind.WRONG_RECORDS, where, f"{records or 0} records, as were read", found[number])
    if left_out:
        why = "the translator skips such, or sets them aside"
        findings.note(f"{named(partition)}: {left_out} records made no tuple: {why}")
    if compacted:
        findings.note(
            f"{named(partition)}: {compacted} records that were read are no longer there: the topic is compacted"
        )


def _is_compacted(source: KafkaSource, partition: Partition) -> bool:
    """Whether the topic's old records may go, one by one, once later ones have their keys."""
    resource = ConfigResource(ResourceType.TOPIC, source.topic_of(partition[0]))
    admin = AdminClient(source.settings())
    [answer] = admin.describe_configs([resource], request_timeout=source.timeout_s).values()
    try:
        return "compact" in str(answer.result()["cleanup.policy"].value)
    except KafkaException as error:
        raise SourceUnreadable(f"whether {named(partition)} is compacted can't be found out: {error}") from error


def _count(source: KafkaSource, partition: Partition, starts: Sequence[int], end: int) -> Counter[int]:
    """The number of records per range, by the range's index; records of gaps belong to the range before."""
    consumer = _consumer(source)
    counted: Counter[int] = Counter()
    topic, index = source.topic_of(partition[0]), partition[1]
    try:
        consumer.assign([TopicPartition(topic, index, starts[0])])
        position, quiet_since_s = starts[0], time.monotonic()
        while position < end:
            # Waits until so many records are there, which they are not where offsets have none.
            messages = consumer.consume(min(BATCH_RECORDS, end - position), POLL_S)
            offsets = [int(message.offset() or 0) for message in messages if message.error() is None]
            counted.update(bisect_right(starts, offset) - 1 for offset in offsets if offset < end)
            [now] = consumer.position([TopicPartition(topic, index)])
            if messages or now.offset > position:
                quiet_since_s = time.monotonic()
            elif time.monotonic() - quiet_since_s > source.timeout_s:
                raise SourceUnreadable(f"{named(partition)} returns nothing from offset {position} on")
            position = max(position, now.offset)
        return counted
    except KafkaException as error:
        raise SourceUnreadable(f"{named(partition)} can't be read: {error}") from error
    finally:
        consumer.close()


def topic_of(source: str) -> str:
    """The topic of a partition's source, which is `topic` or `topic#beginning of its id`."""
    return source.partition("#")[0]


def shown_id(topic_id: str) -> str:
    """A topic's id as Kafka's tools show it, and stores have it; the library's is in plain base64."""
    return topic_id.replace("/", "_").replace("+", "-")


def _topic_ids(source: KafkaSource, topics: Sequence[str]) -> dict[str, str | None]:
    """Topic → id, None for one without an id, or one that does not exist."""
    ids: dict[str, str | None] = {}
    if not topics:
        return ids
    admin = AdminClient(source.settings())
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=source.timeout_s)
    for topic, future in answers.items():
        try:
            ids[topic] = shown_id(str(future.result().topic_id))
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise SourceUnreadable(_unreadable(source, error)) from error
            ids[topic] = None
    return ids


def _state(
    consumer: Consumer, source: KafkaSource, partition: Partition, ids: Mapping[str, str | None]
) -> PartitionState | None:
    topic, id_known = source.topic_of(partition[0]), partition[0].partition("#")[2]
    id_now = ids.get(topic)
    if id_now is None or (id_known and not id_now.startswith(id_known)):
        return None
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition[1]), timeout=source.timeout_s)
    return PartitionState(low, high)


def _consumer(source: KafkaSource) -> Consumer:
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
