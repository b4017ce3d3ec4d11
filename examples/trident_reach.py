"""Storm's reach: how many people have seen an address, that is, follow somebody who has posted it.

`transactional run examples.trident_reach:build --master none --until-drained` reads who has posted what and who follows
whom, from memory, without Spark; `transactional query examples.trident_reach:build reach foo.com/blog/1` computes the
reach, whether or not it runs. `python -m examples.trident_reach` does both.
"""

import argparse
from pathlib import Path

from spouts import MemoryTransactionalSpout
from state import DeltaMapState
from transactional import Topology, TopologyConfig, Tuple, run_topology
from transactional.queries import QueryClient
from transactional.trident import Combiner, Count, Stream, TridentTopology

POSTED = {
    "foo.com/blog/1": ["sally", "bob", "tim", "george", "nathan"],
    "engineering.twitter.com/blog/5": ["adam", "david", "sally", "nathan"],
    "tech.backtype.com/blog/123": ["tim", "mike", "john"],
}
FOLLOWERS = {
    "sally": ["bob", "tim", "alice", "adam", "jim", "chris", "jai"],
    "bob": ["sally", "nathan", "jim", "mary", "david", "vivian"],
    "tim": ["alex"],
    "nathan": ["sally", "bob", "adam", "harry", "chris", "vivian", "emily", "jordan"],
    "adam": ["david", "carissa"],
    "mike": ["john", "bob"],
    "john": ["alice", "nathan", "jim", "mike", "bob"],
}


class People(Combiner):
    """Everybody once, in alphabetical order."""

    output = "people array<string>"

    def __init__(self, field: str) -> None:
        self.field = field

    def init(self, row: Tuple) -> list[str]:
        """Return the person of one row."""
        return [row[self.field]]

    def combine(self, first: list[str], second: list[str]) -> list[str]:
        """Return the persons of both lists."""
        return sorted({*first, *second})

    def zero(self) -> list[str]:
        """Return the list of an address without posts, or of a person without followers."""
        return []


def pairs(people: dict[str, list[str]]) -> list[list[tuple[str, str]]]:
    """Return a row for each pair of a name and a person, in one partition."""
    return [[(name, person) for name, persons in people.items() for person in persons]]


def build(directory: str = "data/trident-reach") -> Topology:
    """The topology over two spouts in memory, with the query `reach`."""
    topology = TridentTopology("trident-reach")
    posts = topology.new_stream("posts", MemoryTransactionalSpout(pairs(POSTED), "address string, person string", 5))
    follows = topology.new_stream("follows", MemoryTransactionalSpout(pairs(FOLLOWERS), "person string, by string", 9))
    posted = posts.group_by("address").persistent_aggregate(DeltaMapState(f"{directory}/posted"), People("person"))
    followers = follows.group_by("person").persistent_aggregate(DeltaMapState(f"{directory}/followers"), People("by"))

    @topology.query("reach", "address string")
    def reach(questions: Stream) -> Stream:
        persons = questions.state_query(posted, on="address").flat_map(lambda row: row.people or [], "person string")
        reached = persons.state_query(followers, on="person").flat_map(lambda row: row.people or [], "follower string")
        return reached.group_by("follower").aggregate(times=Count()).aggregate(reach=Count())

    return topology.build(strict=True)


def main(directory: str) -> None:
    """Read everything, and print the reach of each address."""
    topology, store = build(directory), f"sqlite:///{directory}/store.db"
    run_topology(topology, store=store, config=TopologyConfig(stop_when_drained=True), master="none")
    with QueryClient(topology, store) as client:
        for address in [*POSTED, "nobody.com/blog/0"]:
            [row] = client.execute("reach", address)
            print(f"{address}: {row['reach']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default="data/trident-reach", help="where tables and progress are stored")
    options = parser.parse_args()
    Path(options.directory).mkdir(parents=True, exist_ok=True)
    main(options.directory)
