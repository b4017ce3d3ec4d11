"""How often does each word occur in every five minutes? Each window is counted once, when it has closed.

`transactional run examples.five_minute_word_count:build --master none` counts messages in memory, without Spark.
`python -m examples.five_minute_word_count` does the same and prints what it has found.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TopologyConfig, Tuple, run_topology
from transactional.core.ports import Spout
from transactional.trident import Count, TridentTopology, tumbling

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
MESSAGES = (
    (0, "the cow jumped over the moon"),
    (2, "the man went to the store"),
    (4, "and bought some candy"),
    (6, "four score and seven years ago"),
    (3, "how many apples can you eat"),
    (11, "to be or not to be the person"),
    (1, "the very first message comes last"),
    (16, "the end"),
    (17, "is near"),
)
"""The minute after noon at which each was written, and its text; in the order in which they come."""
MAX_DELAY = timedelta(minutes=3)


class Timed(NamedTuple):
    """A word, as `split` emits it, with its time, by which it is assigned to windows."""

    at: datetime
    word: str


def split(message: Tuple) -> Iterator[Timed]:
    """The words of a message."""
    return (Timed(message.at, word) for word in message.text.split())


def build(spout: Spout | None = None, directory: str = "data/five-minutes") -> Topology:
    """The topology over a spout with the fields `at` and `text`, by default one in memory."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    rows = [(NOON + timedelta(minutes=minute), text) for minute, text in MESSAGES]
    in_memory = MemoryTransactionalSpout([rows], fields="at timestamp, text string", take=1)
    topology = TridentTopology("five-minutes")
    messages = topology.new_stream("messages", spout or in_memory, event_time="at", max_delay=MAX_DELAY)
    open_windows = DeltaMapState(f"{directory}/open")
    words = messages.flat_map(split).group_by("word").window(tumbling("5 minutes"))
    counts = words.persistent_aggregate(open_windows, Count())
    counts.closed().persist(DeltaMapState(f"{directory}/counts", ("window_start", "word")))
    late = DeltaMapState(f"{directory}/late", ("at", "word"))
    counts.late().group_by("at", "word").persistent_aggregate(late, Count())
    return topology.build(strict=True)


def main(directory: str = "data/five-minutes") -> list[str]:
    """Count until the source is drained; print the windows that have closed."""
    topology = build(directory=directory)
    store = f"sqlite:///{directory}/store.db"
    run_topology(topology, store=store, config=TopologyConfig(stop_when_drained=True), master="none")
    columns = ("window_start timestamp, word string", "window_end timestamp, count long")
    rows = (
        DeltaMapState(f"{directory}/counts", *columns)
        .read()
        .sort_by([("window_start", "ascending"), ("word", "ascending")])
    )
    lines = [f"{row['window_start']:%H:%M} {row['word']} {row['count']}" for row in rows.to_pylist()]
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main()
