"""The ceiling: bare confluent-kafka consumers that turn keys into Arrow, one process per core, and do nothing else."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from multiprocessing.synchronize import Barrier
from time import monotonic

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

_CONSUME_MAX = 10_000
_TIMEOUT_S = 120
_SETTINGS = {
    "group.id": "raw",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 64 * 1024,
}


def messages_per_second(bootstrap: str, topic: str, until: Mapping[int, int], processes: int) -> float:
    """Messages a second from the broker into Arrow, over all processes; the consumers are assigned before the start."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    tasks = [dict(sorted(until.items())[number::processes]) for number in range(processes)]
    with context.Manager() as manager:
        spans = manager.list()
        workers = [context.Process(target=_read, args=(bootstrap, topic, task, barrier, spans)) for task in tasks]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(_TIMEOUT_S)
            worker.kill()
        if len(spans) < processes:
            raise TimeoutError(f"raw consumers did not read {topic!r} within {_TIMEOUT_S} s")
        elapsed_s: float = max(end for _, end in spans) - min(start for start, _ in spans)
    return sum(until.values()) / elapsed_s


def _read(
    bootstrap: str, topic: str, until: Mapping[int, int], barrier: Barrier, spans: list[tuple[float, float]]
) -> None:
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": bootstrap})
    consumer.list_topics(topic, timeout=10)
    barrier.wait(_TIMEOUT_S)
    started_at = monotonic()
    consumer.assign([TopicPartition(topic, partition, 0) for partition in until])
    left = sum(until.values())
    while left > 0:
        messages = consumer.consume(min(left, _CONSUME_MAX), 1)
        wanted = [message for message in messages if (message.offset() or 0) < until[message.partition() or 0]]
        left -= len(pa.array(list(map(Message.key, wanted)), pa.binary()))
    spans.append((started_at, monotonic()))
    consumer.close()
