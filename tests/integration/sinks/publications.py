"""What readers of a topic see of a topology's publications, and what must hold of it after any number of deaths."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from sinks.kafka.record_encoding import OUR_HEADERS
from tests.integration.sinks.dying_publisher import BAD, ROWS
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


@dataclass(frozen=True, slots=True)
class Seen:
    """A visible record: its partition and key, its value as JSON, and the transaction in its headers, 0 without."""

    partition: int
    key: str | None
    value: dict[str, object]
    txid: int
    attempt_id: int


def visible_records(bootstrap: str, topic: str, partitions: int) -> list[Seen]:
    """The records of a topic that a reader of read_committed sees, in order of each partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.partition.eof": True, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    records, ended = list[Seen](), set[int]()
    while len(ended) < partitions:
        if (message := consumer.poll(1)) is None:
            continue
        partition = message.partition()
        assert partition is not None
        if message.error() is not None:
            ended.add(partition)
            continue
        headers = {
            name: int(value or 0) for name, value in dict(message.headers() or ()).items() if name in OUR_HEADERS
        }
        key, value = message.key(), json.loads(message.value() or b"null")
        txid, attempt_id = headers.get("txid", 0), headers.get("attempt", 0)
        records.append(Seen(partition, None if key is None else key.decode(), value, txid, attempt_id))
    consumer.close()
    return records


def check_publications(bootstrap: str, topic: str, folder: Path, store_url: str, partitions: int) -> None:
    """Each number is published once, each count as its table had it, by the attempts that the store has committed."""
    numbers = visible_records(bootstrap, f"{topic}-numbers", partitions)
    good = [row for row in ROWS if row[1] not in BAD]
    assert Counter((seen.key, seen.value["number"]) for seen in numbers) == Counter(good)
    in_table = Counter(word for word, _ in good)
    assert counts(folder / "first", "word") == counts(folder / "second", "word") == in_table
    assert len(rows(folder / "letters", "txid")) == len(BAD)
    changes = visible_records(bootstrap, f"{topic}-counts", partitions)
    for word, count in in_table.items():
        values = [int(str(seen.value["count"])) for seen in changes if seen.key == word]
        assert values == sorted(set(values)), f"{word}: {values}"
        assert values[-1] == count
    with closing(SqlCoordinatorStore(store_url)) as store:
        records = store.attempts(topic, limit=100_000)
        committed = {each.attempt.txid: each.attempt.attempt_id for each in records if each.phase == "committed"}
        progress = store.sinks(topic)
    assert {name: each.waiting for name, each in progress.items()} == {"numbers": 0, "counts": 0}
    for seen in (*numbers, *changes):
        assert committed[seen.txid] == seen.attempt_id, seen  # type: ignore[index]
    for published in (numbers, changes):
        for partition in range(partitions):
            txids = [seen.txid for seen in published if seen.partition == partition]
            assert all(one <= other for one, other in pairwise(txids)), f"partition {partition}: {txids}"
