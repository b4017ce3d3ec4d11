"""`TransactionalKafkaSpout` and `OpaqueKafkaSpout`: the driver's side, which plans batches and reads no record.

Storm's KafkaTridentSpoutTransactional and KafkaTridentSpoutOpaque (rows K1 to K8). Ranges end at the last stable
offset, so that no batch waits for a Kafka transaction that is still open.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from spouts.base import PartitionedSpout
from spouts.kafka_consumers import Topic, consumer_pool, describe_topics, make_client
from spouts.kafka_mirror import GroupMirror
from spouts.kafka_reader import KafkaPartitionReader
from spouts.kafka_settings import (
    KafkaConnection,
    Option,
    checked_topics,
    described,
    has_id,
    output_schema,
    topic_of,
)
from spouts.planning import Limits, Logs, PartitionLog
from transactional.batch import BatchMetadata, Offset, PartitionId
from transactional.errors import BatchLost, ConfigError, SourceUnavailable
from transactional.schema import did_you_mean

_log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 100_000
"""The default limit of a batch. It matters when there is a backlog: then larger batches are faster, and later."""

_STARTS = ("earliest", "latest")
_DEFAULT_FIELDS = ("topic", "partition", "offset", "key", "value")

Asked = dict[PartitionId, TopicPartition]


class KafkaSpout(PartitionedSpout):
    """What the two Kafka spouts share; use one of them.

    `topics` are names. A batch takes `batch_records_max` offsets at most, and `partition_records_max` of any one
    partition. `start` says where to begin what no batch has a position for: `"earliest"`, or `"latest"`, the end when
    the topology first runs; partitions that come later are read from their beginning in any case. `fields` are those
    of topic, partition, offset, key, value, timestamp, headers that the tuples have; key and value are bytes, or text
    with `key_type="string"` and `value_type="string"`. `options` are librdkafka's (security, for example).
    With `group_id` the committed positions are mirrored to that consumer group, for tools that show its lag.
    Waiting for a broker takes at most `timeout_ms`. Raises `ConfigError` for what can't be right.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Iterable[str],
        *,
        batch_records_max: int | None = BATCH_RECORDS_MAX,
        partition_records_max: int | None = None,
        start: Literal["earliest", "latest"] = "earliest",
        fields: Iterable[str] = _DEFAULT_FIELDS,
        key_type: Literal["binary", "string"] = "binary",
        value_type: Literal["binary", "string"] = "binary",
        options: Mapping[str, Option] | None = None,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        group_id: str | None = None,
        timeout_ms: int = 10_000,
    ) -> None:
        limits = Limits(batch_records_max, partition_records_max)
        super().__init__(output_schema(fields, key_type=key_type, value_type=value_type), limits)
        if start not in _STARTS:
            raise ConfigError(f"start is 'earliest' or 'latest', not {start!r}{did_you_mean(str(start), _STARTS)}")
        given = tuple(sorted((options or {}).items()))
        self.connection = KafkaConnection(bootstrap_servers, isolation, timeout_ms, given)
        self.topics = checked_topics(topics)
        self._start = start
        self._group_id = group_id
        self._admin: AdminClient | None = None
        self._mirror: GroupMirror | None = None
        self._cluster_id = ""
        self._topics: dict[str, Topic] = {}
        self._starts: dict[PartitionId, Offset] = {}
        self._told: set[str] = set()

    def __repr__(self) -> str:
        options = self.connection.shown_options()
        return f"{type(self).__name__}({self.connection.bootstrap_servers!r}, {list(self.topics)}, options={options})"

    def identity(self) -> Mapping[str, str]:
        """Kind, cluster id and topics; the ids of a transactional spout's topics too.

        An opaque spout goes on with a topic that was created anew, also over a restart: its id is in the positions.
        """
        self._opened()
        known = {"kind": type(self).__name__, "cluster": self._cluster_id, "topics": ",".join(self.topics)}
        ids = ",".join(self._topics[name].id or "" for name in self.topics if name in self._topics)
        return known | {"topic ids": ids} if self.replays_exactly else known

    def open(self) -> None:
        """Connect, and check that the topics are there and fit for this kind of spout.

        Raises `ConfigError` naming the topic, `SourceUnavailable` naming the address within twice `timeout_ms`.
        """
        self.close()
        errors: deque[Any] = deque(maxlen=1)
        settings: dict[str, Any] = self.connection.client() | {"error_cb": errors.append}
        self._admin = make_client(partial(AdminClient, settings), self.connection)
        try:
            self._cluster_id = self._connect(self._admin, errors)
            self._topics = self._existing(self._admin)
            if self.replays_exactly:
                self._refuse_compacted(self._admin)
        except BaseException:
            self.close()
            raise
        self._mirror = GroupMirror(self._admin, self._group_id, self.connection) if self._group_id else None

    def logs(self, after: BatchMetadata) -> Logs:
        """The offsets that each partition holds, up to the last stable one. Two or three round trips in all."""
        admin = self._opened()
        admin.poll(0)  # else what it has to say about broken connections would pile up
        if self._mirror is not None:
            self._mirror.go_on()
        found = describe_topics(admin, self.connection, self.topics)
        self._topics = {name: topic for name, topic in found.items() if topic is not None}
        for name in sorted(set(found) - set(self._topics)):
            self._tell(f"topic {name!r} is gone; its positions are kept")
        sources = {name: self._source(topic, after) for name, topic in self._topics.items()}
        logs: dict[PartitionId, PartitionLog | None] = {}
        asked: Asked = {}
        for name, source in sources.items():
            for index, is_led in self._topics[name].partitions.items():
                partition = PartitionId(source, index)
                logs[partition] = None
                if is_led:
                    asked[partition] = TopicPartition(name, index)
                else:
                    self._tell(f"{described(partition)} has no leader; it is left out until it has")
        logs.update(self._ask(admin, asked))
        self._look_for_created_anew(after, sources, logs)
        return self._with_starts(after, logs)

    def reader(self) -> KafkaPartitionReader:
        """What reads the ranges on the executors."""
        return KafkaPartitionReader(self.connection, self.output)

    def committed(self, batch: BatchMetadata) -> None:
        """Mirror the positions to the consumer group, if there is one to mirror to. Does not wait, does not raise."""
        if self._mirror is not None:
            current = {topic.source for topic in self._topics.values()} | set(self._topics)
            self._mirror.send({p: offset for p, offset in batch.positions().items() if p.source in current})

    def close(self) -> None:
        """Finish mirroring, within two seconds, and close the clients."""
        if self._mirror is not None:
            self._mirror.close()
        self._mirror = self._admin = None
        consumer_pool().close(self.connection)

    def _opened(self) -> AdminClient:
        if self._admin is None:
            raise ConfigError(f"{self!r} is not open; call open() first")
        return self._admin

    def _reason(self, error: KafkaException) -> str:
        return self.connection.redact(error.args[0].str())

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)

    # --- opening ------------------------------------------------------------------------------------------------

    def _connect(self, admin: AdminClient, errors: deque[Any]) -> str:
        try:
            return str(admin.describe_cluster(request_timeout=self.connection.timeout_s).result().cluster_id)
        except KafkaException as error:
            admin.poll(0)
            reason = self.connection.redact(errors[0].str()) if errors else self._reason(error)
            raise SourceUnavailable(
                f"no Kafka broker at {self.connection.bootstrap_servers} answers within "
                f"{self.connection.timeout_ms} ms: {reason}"
            ) from error

    def _existing(self, admin: AdminClient) -> dict[str, Topic]:
        found = describe_topics(admin, self.connection, self.topics)
        missing = [name for name, topic in found.items() if topic is None]
        if missing:
            there = sorted(admin.list_topics(timeout=self.connection.timeout_s).topics)
            raise ConfigError(
                f"there is no topic {missing[0]!r} at {self.connection.bootstrap_servers}"
                f"{did_you_mean(missing[0], there)}; create it first"
            )
        return {name: topic for name, topic in found.items() if topic is not None}

    def _refuse_compacted(self, admin: AdminClient) -> None:
        """Compaction removes records out of recorded ranges, so that they can't be replayed as they were."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in self.topics]
        futures = admin.describe_configs(resources, request_timeout=self.connection.timeout_s)
        for resource, future in futures.items():
            try:
                policy = str(future.result()["cleanup.policy"].value)
            except KafkaException as error:
                self._tell(f"topic {resource.name!r}: could not find out if it is compacted: {self._reason(error)}")
                continue
            if "compact" in policy:
                raise ConfigError(
                    f"topic {resource.name!r} has cleanup.policy={policy}: compaction changes what a replay reads; "
                    "use OpaqueKafkaSpout, or a topic with cleanup.policy=delete"
                )

    # --- what the logs hold -------------------------------------------------------------------------------------

    def _source(self, topic: Topic, after: BatchMetadata) -> str:
        """The source of a topic's partitions; positions from when the cluster had no topic ids stay valid."""
        name = topic_of(topic.source)
        known = {p.source for p in after.ranges if topic_of(p.source) == name}
        if topic.id is None and known - {name}:
            raise SourceUnavailable(f"the cluster gives no id for topic {name!r} any more, so it can't be told apart")
        return name if name in known else topic.source

    def _ask(self, admin: AdminClient, asked: Asked) -> dict[PartitionId, PartitionLog | None]:
        isolation = IsolationLevel[self.connection.isolation.upper()]
        seconds = self.connection.timeout_s
        if not asked:
            return {}
        first = {tp: OffsetSpec.earliest() for tp in asked.values()}  # type: ignore[no-untyped-call]
        last = {tp: OffsetSpec.latest() for tp in asked.values()}  # type: ignore[no-untyped-call]
        earliest = admin.list_offsets(first, request_timeout=seconds)
        latest = admin.list_offsets(last, isolation_level=isolation, request_timeout=seconds)
        logs = {partition: self._log_of(partition, earliest[tp], latest[tp]) for partition, tp in asked.items()}
        if not any(logs.values()):
            raise SourceUnavailable(
                f"no partition of {', '.join(self.topics)} at {self.connection.bootstrap_servers} tells its offsets"
            )
        return logs

    def _log_of(self, partition: PartitionId, earliest: Future[Any], latest: Future[Any]) -> PartitionLog | None:
        try:
            return PartitionLog(Offset(earliest.result().offset), Offset(latest.result().offset))
        except KafkaException as error:
            self._tell(f"{described(partition)} does not tell its offsets: {self._reason(error)}")
            return None

    def _with_starts(self, after: BatchMetadata, logs: Logs) -> Logs:
        """With `start="latest"`: the ends of the partitions there are when a topic is first seen, kept for replays."""
        if self._start == "earliest":
            return logs
        seen = {topic_of(p.source) for p in [*after.ranges, *self._starts]}
        for partition, log in logs.items():
            if log is not None and topic_of(partition.source) not in seen:
                self._starts[partition] = log.end
        return {p: log and PartitionLog(log.earliest, log.end, self._starts.get(p)) for p, log in logs.items()}

    def _look_for_created_anew(self, after: BatchMetadata, sources: Mapping[str, str], logs: Logs) -> None:
        for partition, offsets in after.ranges.items():
            now = sources.get(topic_of(partition.source), partition.source)
            if now == partition.source or not has_id(partition.source):
                continue
            text = f"topic {topic_of(partition.source)!r} was created anew: it was {partition.source!r} and is {now!r}"
            if self.replays_exactly:
                raise BatchLost(
                    f"{text}. {described(partition)} was to be read from offset {offsets.start} on; there is now "
                    f"{logs.get(PartitionId(now, partition.index)) or 'no such partition'}, of other records. Use "
                    "OpaqueKafkaSpout, which goes on with what is there, or start a topology with a new id"
                )
            self._tell(f"{text}; what was not read of the old one is lost, the new one is read from its beginning")


class TransactionalKafkaSpout(KafkaSpout):
    """A transactional spout over Kafka topics: a replay reads exactly the recorded offsets (see `KafkaSpout`).

    When offsets are lost before they were read, it stops with `BatchLost` rather than skip them.
    """

    @property
    def replays_exactly(self) -> bool:
        """True."""
        return True


class OpaqueKafkaSpout(KafkaSpout):
    """An opaque spout over Kafka topics: a replay takes what is there then (see `KafkaSpout`).

    It goes on without partitions that don't answer, past offsets that are lost, and with topics created anew.
    """

    @property
    def replays_exactly(self) -> bool:
        """False."""
        return False
