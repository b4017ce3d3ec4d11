"""The topology under fire: `transactional run tests.experiment.ours:build`, in the folder of its table.

The variables BOOTSTRAP, TOPIC and BATCH say where its messages are, and how many a transaction takes at most.
"""

from __future__ import annotations

import os

from spouts import OpaqueKafkaSpout
from state import DeltaMapState
from tests.experiment.load import PARTITIONS
from transactional import Topology, TransactionalTopologyBuilder

TOPOLOGY = "experiment"
TABLE = "counts"


def build() -> Topology:
    """Messages counted by key, four tasks in each phase."""
    spout = OpaqueKafkaSpout(
        os.environ["BOOTSTRAP"],
        [os.environ["TOPIC"]],
        fields=("key",),
        key_type="string",
        batch_records_max=int(os.environ["BATCH"]),
    )
    builder = TransactionalTopologyBuilder(TOPOLOGY, "messages", spout, PARTITIONS)
    count = DeltaMapState(os.path.abspath(TABLE), "key string", "count long").count()
    builder.set_committer_bolt("count", count, PARTITIONS).fields_grouping("messages", "key")
    return builder.build()
