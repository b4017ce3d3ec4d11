"""Two brokers of one cluster, of which one may be away with the partitions that only it has."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from spouts.local_broker import LocalBroker

WAIT_S = 60
FIRST, SECOND, NOBODY = 1, 2, -1
"""The ids of the brokers, and that of no leader."""


class SecondBroker(LocalBroker):
    """A broker of another one's cluster, which has the only controller."""

    def __init__(self, first: LocalBroker, directory: Path) -> None:
        super().__init__(directory)
        data = directory / "data"
        data.mkdir(parents=True)
        meta = (first.directory / "data" / "meta.properties").read_text("utf-8")
        # The id of its data folder it chooses itself.
        meta = re.sub(r"(?m)^directory.id=.*\n", "", re.sub(r"(?m)^node.id=.*", f"node.id={SECOND}", meta))
        (data / "meta.properties").write_text(meta, "utf-8")
        self._settings = (first.directory / "server.properties").read_text("utf-8")

    def _addresses(self) -> dict[str, str]:
        [voters] = re.findall(r"(?m)^controller.quorum.voters=(.*)$", self._settings)
        return {
            **super()._addresses(),
            "process.roles": "broker",
            "node.id": str(SECOND),
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": voters,
        }


def create_topics(bootstrap: str, leaders: Mapping[str, Sequence[int]]) -> None:
    """Create topics, with the id of the broker that alone has it for each partition."""
    topics = [NewTopic(name, len(of), replica_assignment=[[each] for each in of]) for name, of in leaders.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics(topics).values():
        created.result(WAIT_S)
    await_leaders(bootstrap, leaders)


def await_leaders(bootstrap: str, leaders: Mapping[str, Sequence[int]]) -> None:
    """Wait until these brokers lead the partitions."""
    admin, deadline = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}), time.monotonic() + WAIT_S
    while True:
        topics = admin.list_topics(timeout=WAIT_S).topics
        found = {
            name: [each.leader for _, each in sorted(topics[name].partitions.items())]
            for name in leaders
            if name in topics
        }
        if found == leaders:
            return
        assert time.monotonic() < deadline, found
