"""A bolt without transactions, for topologies on Spark: it notes what it is given, and ends its process once."""

from __future__ import annotations

import os
from pathlib import Path

from tests.integration.signals import is_first
from transactional.bolts import BasicBolt, OutputCollector, TopologyContext
from transactional.model.user_code.tuples import Tuple


class Send(BasicBolt):
    """Notes each word in a file of its own process; ends it on the first `dies`, fails on the first `fails`."""

    def prepare(self, context: TopologyContext) -> None:
        self.folder = context.options["folder"]

    def execute(self, tuple: Tuple, collector: OutputCollector) -> None:
        with Path(f"{self.folder}/sent-{os.getpid()}").open("a", encoding="utf-8") as file:
            file.write(f"{tuple.word}\n")
        if tuple.word == "dies" and is_first(f"{self.folder}/died"):
            os._exit(1)
        if tuple.word == "fails" and is_first(f"{self.folder}/failed"):
            raise ConnectionError("the server does not answer")


def sent(folder: Path) -> list[str]:
    """All words that were given to `Send`."""
    return [word for path in folder.glob("sent-*") for word in path.read_text("utf-8").split()]
