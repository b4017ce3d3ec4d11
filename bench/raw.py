"""The ceiling: bare confluent-kafka consumers that turn keys into Arrow, one process per core, and do nothing else.

As many processes as ours has tasks, and the same messages. Each has one consumer for all its partitions, long queues
that are filled ahead, and no garbage collection.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Mapping, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import monotonic

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from bench.rounds import BatchTimes, Stage
from bench.works import Work

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

Ranges = dict[int, tuple[int, int]]
"""Start and end offset by partition."""


class Raw:
    """Reads what the others read."""

    name = "raw"
    directory: Path | None = None

    def __init__(self, stage: Stage, work: Work) -> None:
        self.stage, self.work = stage, work
        self._done = dict.fromkeys(work.workload.until(0), 0)

    def run(self, until: Mapping[int, int], batch_messages: int) -> Sequence[BatchTimes]:
        """From where the last run ended to the given offsets, in one go."""
        ranges = {partition: (self._done[partition], end) for partition, end in until.items()}
        self._done = dict(until)
        elapsed_ms = elapsed_s(self.stage.bootstrap, self.work.workload.topic, ranges, self.stage.tasks) * 1000
        return [BatchTimes(0.0, elapsed_ms, elapsed_ms, {})]


def elapsed_s(bootstrap: str, topic: str, ranges: Ranges, processes: int) -> float:
    """Seconds from the broker into Arrow, over all processes; the clients are connected before the start.

    Raises `TimeoutError` when one does not come to its end.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    tasks = [dict(sorted(ranges.items())[number::processes]) for number in range(processes)]
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
        return float(max(end for _, end in spans) - min(start for start, _ in spans))


def _read(bootstrap: str, topic: str, ranges: Ranges, barrier: Barrier, spans: list[tuple[float, float]]) -> None:
    consumer = Consumer({**_SETTINGS, "bootstrap.servers": bootstrap})
    consumer.list_topics(topic, timeout=10)
    gc.disable()
    barrier.wait(_TIMEOUT_S)
    started_at = monotonic()
    consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in ranges.items()])
    left = sum(end - start for start, end in ranges.values())
    while left > 0:
        messages = consumer.consume(min(left, _CONSUME_MAX), 1)
        wanted = [message for message in messages if (message.offset() or 0) < ranges[message.partition() or 0][1]]
        left -= len(pa.array(list(map(Message.key, wanted)), pa.binary()))
    spans.append((started_at, monotonic()))
    consumer.close()
