"""`GroupMirror`: writes committed positions to a consumer group so that Kafka's tools can show a topology's lag."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from spouts.kafka.clients.cluster import KafkaConnection, topic_of
from transactional.model.batch import Offset, PartitionId

_log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 2.0


class GroupMirror:
    """Writes positions asynchronously: one request at a time; of several waiting positions only the last is written.

    Nothing depends on it: failures are logged, and later positions are still written. There is no thread and no
    callback: a callback would run in the client's own thread, and a client that dies there aborts the process.
    """

    def __init__(self, admin: AdminClient, group_id: str, connection: KafkaConnection) -> None:
        self._admin, self._group_id, self._connection = admin, group_id, connection
        self._lock = Lock()
        self._waiting_positions: Mapping[PartitionId, Offset] = {}
        self._request: Future[Any] | None = None

    def send(self, positions: Mapping[PartitionId, Offset]) -> None:
        """Request that the positions are written. Returns immediately; a later call replaces waiting positions."""
        with self._lock:
            self._waiting_positions = positions
        self.proceed()

    def proceed(self) -> None:
        """Process a response if there is one, then send what is waiting. Returns immediately; call it periodically."""
        with self._lock:
            if self._request is None or self._request.done():
                self._take_response(0)
                self._send_waiting()

    def close(self) -> None:
        """Wait until the last positions are written, for two seconds at most."""
        with self._lock:
            for _ in range(2):
                self._take_response(_CLOSE_TIMEOUT_S / 2)
                self._send_waiting()

    def _send_waiting(self) -> None:
        positions, self._waiting_positions = self._waiting_positions, {}
        offsets = [TopicPartition(topic_of(p.source), p.index, offset) for p, offset in sorted(positions.items())]
        if not offsets:
            return
        try:
            request = [ConsumerGroupTopicPartitions(self._group_id, offsets)]
            futures = self._admin.alter_consumer_group_offsets(request, request_timeout=self._connection.timeout_s)
            self._request = futures[self._group_id]
        except Exception as error:
            self._log_failure(error)

    def _take_response(self, timeout_s: float) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        try:
            errors = [partition.error for partition in request.result(timeout_s).topic_partitions if partition.error]
        except Exception as error:
            errors = [error]
        if errors:
            self._log_failure(errors[0])

    def _log_failure(self, error: object) -> None:
        reason = self._connection.redact(error) or type(error).__name__
        _log.warning("the positions could not be mirrored to consumer group %r: %s", self._group_id, reason)
