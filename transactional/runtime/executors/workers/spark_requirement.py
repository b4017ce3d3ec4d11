"""Finds out why a topology can't run in worker processes of the driver, but needs Spark."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from transactional.runtime.sending.by_value import modules_of, sending_by_value
from transactional.runtime.tasks.program import check_sendable, make_program
from transactional.topology.topology import Topology

_SHIPPED = ("spark.files", "spark.archives", "spark.submit.pyFiles", "spark.pyspark.python")
"""Settings that give executors files or an environment that the driver's process may lack."""


def reason_for_spark(topology: Topology, conf: Mapping[str, str] | None = None) -> str | None:
    """Return why a topology needs Spark, as part of a sentence, or None if it can run in workers.

    `conf` are the settings of an existing session. Raises `ConfigError` for parts that can't be sent to any process.
    """
    if sys.platform != "linux":
        return "worker processes need Linux"
    for component in topology.components:
        if component.is_dataframe:
            return f"bolt {component.id!r} works on a Spark DataFrame"
    for name in _SHIPPED:
        if (conf or {}).get(name):
            return f"{name} gives Spark's executors files or an environment that this process may lack"
    program = make_program(topology, topology.spout.reader())
    check_sendable(program)
    with sending_by_value(program):
        for owner, part in [
            *((f"bolt {bolt.id!r}", bolt.bolt) for bolt in program.bolts.values()),
            (f"spout {program.spout.id!r}", program.spout.reader),
        ]:
            if any(name.partition(".")[0] == "pyspark" for name in modules_of(part)):
                return f"{owner} uses pyspark in its tasks"
    return None
