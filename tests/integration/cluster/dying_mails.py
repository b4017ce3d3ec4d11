"""A topology without transactions whose tasks wait, the first time that they run, until the test has killed somebody.

The environment says which component waits (`WAITS`: `send` or `__acker`) and which guarantee it has (`GUARANTEE`).
"""

from __future__ import annotations

import os
from dataclasses import replace

from pyspark.sql import SparkSession

from examples.guarantees import Split
from spouts import MemoryTransactionalSpout
from tests.integration.reliable_bolts import Send
from tests.integration.signals import is_first, send, wait_at
from transactional.bolts import OutputCollector, TopologyContext
from transactional.model.attempt import TransactionAttempt
from transactional.operations.launch.running import run_topology
from transactional.reliable import TopologyBuilder
from transactional.topology.reliable.acker import ACKER, Acker
from transactional.topology.topology import Topology

LINES = [[(f"a{number} b{number}",) for number in range(20)], [(f"c{number}",) for number in range(20)]]
WORDS = {word for lines in LINES for (line,) in lines for word in line.split()}


def meet(context: TopologyContext) -> None:
    """The first time that it runs, each task of the component that waits tells the test its pid, and waits."""
    folder, component = context.options["folder"], context.component_id
    if component == context.options["waits"] and is_first(f"{folder}/{component}-{context.task_index}"):
        send(f"{folder}/signals", f"{component} {os.getpid()}")
        wait_at(f"{folder}/gate")


class WaitingSend(Send):
    """Waits before it gets its first word."""

    def prepare(self, context: TopologyContext) -> None:
        super().prepare(context)
        meet(context)


class WaitingAcker(Acker):
    """Waits before it gets what tasks report."""

    def prepare(self, context: TopologyContext, collector: OutputCollector, attempt: TransactionAttempt) -> None:
        super().prepare(context, collector, attempt)
        meet(context)


def build() -> Topology:
    """The topology, with its notes in the current folder."""
    built = TopologyBuilder("mails", guarantee=os.environ["GUARANTEE"], ackers=2)
    built.set_spout("lines", MemoryTransactionalSpout(LINES, "line string", take=10), 2)
    built.set_bolt("split", Split(), 2).shuffle_grouping("lines")
    built.set_bolt("send", WaitingSend(), 2).fields_grouping("split", "word")
    made = built.build(options={"folder": os.getcwd(), "waits": os.environ["WAITS"]})
    components = [replace(c, bolt=WaitingAcker()) if c.id == ACKER else c for c in made.components]
    return replace(made, components=tuple(components))


def run(session: SparkSession) -> None:
    """Run it until its source is drained."""
    run_topology(build(), config={"stop_when_drained": True}, session=session)
