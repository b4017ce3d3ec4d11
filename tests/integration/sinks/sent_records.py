"""The topology of `dying_sender`, and what must hold of its records: none is lost."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from spouts.kafka_admin import create_topic
from tests.integration.kafka_topics import put
from tests.integration.sinks.deaths import Victim
from tests.integration.sinks.dying import BAD, ROWS
from tests.integration.sinks.dying_sender import POINTS, TASK_POINTS
from tests.integration.sinks.publications import PARTITIONS, visible_records
from tests.integration.tables import rows
from transactional.core.store.sql.sql_store import SqlCoordinatorStore


def make_sender(bootstrap: str, folder: Path, topology_id: str, processing: str, store_url: str = "") -> Victim:
    """Make the victim in a folder of its own. Without a `store_url` the store is an SQLite database there."""
    folder.mkdir(parents=True)
    create_topic(bootstrap, f"{topology_id}-rows", 2)
    create_topic(bootstrap, f"{topology_id}-numbers", PARTITIONS)
    for partition in range(2):
        values = [json.dumps({"word": word, "number": number}) for word, number in ROWS[partition::2]]
        put(bootstrap, f"{topology_id}-rows", values, partition)
    store_url = store_url or f"sqlite:///{folder}/store.db"

    def draw_arguments(chance: random.Random, point: str) -> Sequence[str]:
        number = chance.randrange(1, 4)
        if processing == "none":
            # Without other processes, the death of a task is that of the run: it comes late, and not in the last life.
            number = 0 if point == "nowhere" else chance.randrange(3, 20)
        return bootstrap, chance.choice(TASK_POINTS), str(number)

    return Victim(
        "tests.integration.sinks.dying_sender",
        POINTS,
        topology_id,
        folder,
        partial(_check_records, bootstrap, topology_id, folder, store_url),
        processing,
        store_url,
        draw_arguments=draw_arguments,
        points_of_start={point for point, (_, name, _) in POINTS.items() if name == "prepare"},
    )


def _check_records(bootstrap: str, topology_id: str, folder: Path, store_url: str) -> None:
    """Check that good numbers are sent, each to the partition of its key, that bad ones are letters, and none waits."""
    sent = visible_records(bootstrap, f"{topology_id}-numbers", PARTITIONS)
    counts = Counter((seen.key, seen.value["number"]) for seen in sent)
    assert counts.keys() == {row for row in ROWS if row[1] not in BAD}
    partitions_by_key = Counter(key for key, _ in {(seen.key, seen.partition) for seen in sent})
    assert set(partitions_by_key.values()) == {1}
    assert len(rows(folder / "letters", "txid")) == len(BAD)
    with closing(SqlCoordinatorStore(store_url)) as store:
        newest, *earlier = (
            record.batch for record in store.attempts(topology_id, limit=100_000) if record.phase == "committed"
        )
    assert newest.pending == ()
    assert sum(batch.lost for batch in (newest, *earlier)) == 0
