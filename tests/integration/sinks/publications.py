"""The records of topics as their readers see them, and the topology of `dying_publisher` with what must hold of it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from spouts.kafka_admin import create_topic
from tests.integration.sinks.deaths import Victim
from tests.integration.sinks.dying import BAD, ROWS
from tests.integration.sinks.dying_publisher import POINTS, build, number_topics
from tests.integration.tables import counts, rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore
from transactional.operations.doctor.sinks import checked_topics
from verifier.sinks.publications import check_sinks

PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Seen:
    """A visible record: its partition and key, its value as JSON, and the transaction and sink in its headers.

    Numbers are 0 and the id of the sink is empty in a record without these headers.
    """

    partition: int
    key: str | None
    value: dict[str, object]
    txid: int
    attempt_id: int
    sink_id: bytes


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
        headers = {name: value for name, value in dict(message.headers() or ()).items() if isinstance(value, bytes)}
        key, value = message.key(), json.loads(message.value() or b"null")
        txid, attempt_id = int(headers.get("txid", 0)), int(headers.get("attempt", 0))
        key_text, sink_id = None if key is None else key.decode(), headers.get("sink", b"")
        records.append(Seen(partition, key_text, value, txid, attempt_id, sink_id))
    consumer.close()
    return records


def make_publisher(bootstrap: str, folder: Path, topology_id: str, processing: str, store_url: str = "") -> Victim:
    """Make the victim in a folder of its own. Without a `store_url` the store is an SQLite database there."""
    folder.mkdir(parents=True)
    for topic in (*number_topics(topology_id), f"{topology_id}-counts"):
        create_topic(bootstrap, topic, PARTITIONS)
    store_url = store_url or f"sqlite:///{folder}/store.db"
    return Victim(
        "tests.integration.sinks.dying_publisher",
        POINTS,
        topology_id,
        folder,
        partial(_check_publications, bootstrap, topology_id, folder, store_url),
        processing,
        store_url,
        draw_arguments=lambda *_: (bootstrap,),
    )


def _check_publications(bootstrap: str, topic: str, folder: Path, store_url: str) -> None:
    """Each number is published once, each count as its table had it, by the attempts that the store has committed."""
    published = {name: visible_records(bootstrap, name, PARTITIONS) for name in number_topics(topic)}
    numbers = [seen for records in published.values() for seen in records]
    for remainder, records in enumerate(published.values()):
        assert {int(str(seen.value["number"])) % 2 for seen in records} == {remainder}
    good = [row for row in ROWS if row[1] not in BAD]
    assert Counter((seen.key, seen.value["number"]) for seen in numbers) == Counter(good)
    in_table = Counter(word for word, _ in good)
    assert counts(folder / "first", "word") == counts(folder / "second", "word") == in_table
    assert len(rows(folder / "letters", "txid")) == len(BAD)
    changes = published[f"{topic}-counts"] = visible_records(bootstrap, f"{topic}-counts", PARTITIONS)
    for word, count in in_table.items():
        values = [int(str(seen.value["count"])) for seen in changes if seen.key == word]
        assert values == sorted(set(values)), f"{word}: {values}"
        assert values[-1] == count
    with closing(SqlCoordinatorStore(store_url)) as store:
        attempts = store.attempts(topic, limit=100_000)
        committed = {each.attempt.txid: each.attempt.attempt_id for each in attempts if each.phase == "committed"}
        progress = store.sinks(topic)
    assert {name: each.waiting for name, each in progress.items()} == {"numbers": 0, "counts": 0}
    for seen in (*numbers, *changes):
        assert committed[seen.txid] == seen.attempt_id, seen  # type: ignore[index]
    for name, records in published.items():
        for partition in range(PARTITIONS):
            txids = [seen.txid for seen in records if seen.partition == partition]
            assert all(one <= other for one, other in pairwise(txids)), f"{name}, partition {partition}: {txids}"
    topics, _ = checked_topics(build(bootstrap, topic, folder, 1))
    report = check_sinks(store_url, topic, topics)
    assert (report.findings, report.notes) == ((), ())
    assert report.checked == {"published records": len(numbers) + len(changes)}
