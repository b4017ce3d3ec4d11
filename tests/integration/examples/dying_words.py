"""The example `transactional_words` over two databases, whose process kills itself at a given point of transaction 2.

`python -m tests.integration.examples.dying_words POINT`, in the folder of its store. The variables WORDS and BUCKETS
are the URLs of the databases.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from examples import transactional_words
from state import SqlMapState
from tests.integration.faults.dying import PerilousStore, perilous
from transactional import TopologyConfig, TopologyDriver, TransactionAttempt
from transactional.core.ports import Partials
from transactional.model.user_code.tuples import Key
from transactional.runtime.executors.local import LocalExecutor

POINTS = [f"{when} the {what}" for what in ("words table", "buckets table", "store") for when in ("before", "after")]
BUCKET_SIZE = 2
"""So small that words move between buckets in each transaction."""


class PerilousState(SqlMapState):
    """A real state."""

    def put(self, attempt: TransactionAttempt, rows: Mapping[Key, Any]) -> None:
        with perilous(f"{self.identity()['table']} table", attempt):
            super().put(attempt, rows)

    def merge(self, attempt: TransactionAttempt, partials: Partials) -> None:
        with perilous(f"{self.identity()['table']} table", attempt):
            super().merge(attempt, partials)


def main() -> None:
    """Run until the end."""
    # The example names its state by the module's own name.
    setattr(transactional_words, "SqlMapState", PerilousState)  # noqa: B010 - it is not exported from there
    topology = transactional_words.build(os.environ["WORDS"], os.environ["BUCKETS"], BUCKET_SIZE)
    config = TopologyConfig(max_spout_pending=3, tick_ms=10)
    with closing(PerilousStore("sqlite:///store.db")) as store:
        TopologyDriver(topology, store, LocalExecutor(topology), config).run()


if __name__ == "__main__":
    main()
