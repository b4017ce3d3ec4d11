"""The connection of a Kafka sink: the addresses of brokers, and librdkafka's options, of which secrets stay hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from transactional.model.errors import ConfigError, SinkUnavailable
from transactional.model.plumbing.garbage import keep_freed_memory
from transactional.model.plumbing.redaction import redact_secrets

Option = str | int | float | bool
TIMEOUT_S: Final = 10.0
"""The maximum time for one request to a broker."""
TRANSACTION_TIMEOUT_MS: Final = 10_000
"""How long a broker lets a transaction be open. Readers of read_committed wait for open transactions."""

_SECRET: Final = re.compile(r"password|secret|token|credential|jaas|oauthbearer\.config|\.pem$|ssl_key", re.IGNORECASE)
_OURS: Final = (
    *("bootstrap.servers", "metadata.broker.list", "transactional.id", "transaction.timeout.ms", "isolation.level"),
    *("enable.idempotence", "acks", "request.required.acks", "partitioner", "delivery.report.only.error"),
    *("delivery.timeout.ms", "message.timeout.ms"),
    *("enable.auto.commit", "auto.offset.reset", "enable.partition.eof", "group.id", "message.max.bytes"),
)


@dataclass(frozen=True, slots=True)
class SinkConnection:
    """How to reach a cluster. Raises `ConfigError` for an option that the sink sets itself."""

    bootstrap_servers: str
    options: tuple[tuple[str, Option], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise ConfigError("bootstrap_servers is empty; it takes host:port, or several of them, separated by commas")
        for name, _ in self.options:
            if name in _OURS:
                raise ConfigError(f"the option {name!r} can't be set in options=: a KafkaSink sets it itself")

    def settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a librdkafka client."""
        defaults: dict[str, Any] = {"socket.timeout.ms": round(1_000 * TIMEOUT_S), "log_level": 0}
        return {**defaults, **dict(self.options), "bootstrap.servers": self.bootstrap_servers, **more}

    def open_producer(self, settings: Mapping[str, Any], *, used_by: str) -> Producer:
        """Return a new client that sends records. Raises `ConfigError` if librdkafka refuses an option."""
        keep_freed_memory()
        try:
            return Producer(self.settings(settings))
        except KafkaException as error:
            reason = self.redact(kafka_error(error).str())
            raise ConfigError(f"the options= of {used_by} can't be used: {reason}") from error

    def redact(self, text: object) -> str:
        """The text without the secrets of this connection."""
        return redact_secrets((setting for name, setting in self.options if _SECRET.search(name)), str(text))

    def unavailable(
        self, failure: str, error: KafkaException | str, *, is_fenced: bool = False, has_timed_out: bool = False
    ) -> SinkUnavailable:
        """The error for something that the cluster did not do."""
        reason = error if isinstance(error, str) else kafka_error(error).str()
        text = self.redact(f"{failure} at {self.bootstrap_servers}: {reason}")
        return SinkUnavailable(text, is_fenced=is_fenced, has_timed_out=has_timed_out)


def kafka_error(error: KafkaException) -> KafkaError:
    """The error that an exception of the library holds."""
    inner: KafkaError = error.args[0]
    return inner
