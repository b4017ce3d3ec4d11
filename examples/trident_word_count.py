"""Storm's word count with Trident: one table counts words, another which words have become frequent, exactly once.

`transactional run examples.trident_word_count:build --master none` counts sentences in memory, without Spark;
`transactional query examples.trident_word_count:build words "cat dog the man"` adds up the counts of some words, as
Storm's example does by distributed RPC.
`python -m examples.trident_word_count [--bootstrap host:port]` counts the lines of a topic on Spark; it starts its own
broker if none is given.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spouts import MemoryTransactionalSpout, OpaqueKafkaSpout
from spouts.kafka_admin import create_topic, produce
from spouts.local_broker import LocalBroker
from state import DeltaMapState
from transactional import OperatingError, Topology, TopologyConfig, Tuple, run_topology
from transactional.core.ports import Spout
from transactional.operations.cli.display import Display
from transactional.trident import Count, Stream, Sum, TridentTopology, field

SENTENCES = (
    "the cow jumped over the moon",
    "the man went to the store and bought some candy",
    "four score and seven years ago",
    "how many apples can you eat",
    "to be or not to be the person",
)
FREQUENT = 3


class Word(NamedTuple):
    """A word, as `split` emits it."""

    word: str


def split(line: Tuple) -> Iterator[Word]:
    """The words of a line."""
    return (Word(word) for word in line.value.split())


def build(spout: Spout | None = None, directory: str = "data/trident-words") -> Topology:
    """The topology over a spout with the field `value`, by default one in memory."""
    topology = TridentTopology("trident-words", parallelism=2)
    in_memory = MemoryTransactionalSpout([[(line,) for line in SENTENCES]], fields="value string", take=2)
    lines = topology.new_stream("lines", spout or in_memory)
    counts = lines.flat_map(split).group_by("word").persistent_aggregate(DeltaMapState(f"{directory}/words"), Count())
    is_frequent, was_frequent = field("count") >= FREQUENT, field("old_count") >= FREQUENT
    (
        counts.new_values(old=True)
        .filter(is_frequent & (was_frequent.is_null() | ~was_frequent))
        .group_by("word")
        .persistent_aggregate(DeltaMapState(f"{directory}/frequent"), times=Count())
    )

    @topology.query("words", "value string")
    def words(questions: Stream) -> Stream:
        """How often the words of a line occur, in total."""
        found = questions.flat_map(split).state_query(counts, on="word").filter(field("count") > 0)
        return found.aggregate(total=Sum("count"))

    return topology.build(strict=True)


def produce_lines(bootstrap: str, topic: str) -> None:
    """Create a topic of the sentences, unless one of that name exists."""
    try:
        create_topic(bootstrap, topic, partitions=2)
    except OperatingError:
        # It exists; or there is no broker, which the spout reports better.
        return
    produce(bootstrap, topic, [(number % 2, None, line) for number, line in enumerate(SENTENCES)])


def main(bootstrap: str, options: argparse.Namespace) -> None:
    """Count until the topic is drained; print both tables."""
    produce_lines(bootstrap, options.topic)
    spout = OpaqueKafkaSpout(bootstrap, [options.topic], value_type="string", fields=("value",), batch_records_max=2)
    topology = build(spout, options.directory)
    config = TopologyConfig(max_spout_pending=3, stop_when_drained=True)
    with Display(topology) as display:
        store = f"sqlite:///{options.directory}/store.db"
        run_topology(topology, store=store, config=config, master=options.master, observers=[display])
    for name, value in (("words", "count"), ("frequent", "times")):
        rows = DeltaMapState(f"{options.directory}/{name}", "word string", f"{value} long").read().sort_by("word")
        print(f"{name}: " + ", ".join(f"{row['word']} {row[value]}" for row in rows.to_pylist()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", help="a Kafka broker's address; without it a local broker is started")
    parser.add_argument("--topic", default="lines", help="created and filled if it does not exist")
    parser.add_argument("--directory", default="data/trident-words", help="where tables and progress are stored")
    parser.add_argument("--master", default="local[*]", help="the Spark master")
    options = parser.parse_args()
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    if options.bootstrap:
        main(options.bootstrap, options)
    else:
        with LocalBroker(Path(options.directory) / "broker") as broker:
            main(broker.bootstrap, options)
