"""`run_topology`: a topology, a store's URL and an executor, combined in one call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transactional.config import TopologyConfig
from transactional.config_sources import ResolvedConfig, load_config
from transactional.doctor.start import refuse_early
from transactional.engine.driver import TopologyDriver
from transactional.engine.observing import Observer
from transactional.engine.run_history import RunSummary
from transactional.errors import ConfigError
from transactional.loading import open_store
from transactional.ports import JobExecutor
from transactional.telemetry.run_log import RunLog
from transactional.topology.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER = re.compile(r"local(-cluster)?(\[.+\])?|spark://.+|k8s://.+|yarn")


def run_topology(
    topology: Topology,
    *,
    store: str = "sqlite:///transactional.db",
    config: TopologyConfig | Mapping[str, Any] | None = None,
    session: SparkSession | None = None,
    master: str = "local[*]",
    observers: Sequence[Observer] = (),
    name: str | None = None,
    accept_changes: bool = False,
) -> RunSummary:
    """Run a topology in this process until it is done, and return a summary.

    A complete `TopologyConfig` sets every option. A mapping sets those that it names, overriding
    `builder.build(config=…)`, the environment and the file transactional.toml. `name` is the run's name in
    `transactional status`.

    With `accept_changes` a topology that differs from the stored one continues from the stored progress, and replaces
    the stored one once its tables are fenced; otherwise `TopologyChanged` is raised.

    With `session` its jobs run on that Spark session; otherwise one is started on `master`, where `"none"` means no
    Spark at all: the bolts then run in this process. Raises `ConfigError`, a `FatalError`, or `OperatingError` if a
    table's storage does not respond at the start.
    """
    if isinstance(config, TopologyConfig):
        resolved = ResolvedConfig(config, ())
    else:
        resolved = load_config({**topology.config, **(config or {})})
    topology.check_provider(resolved.config)
    coordinator_store = open_store(store)
    try:
        if session is None and master != "none":
            refuse_early(topology, coordinator_store)
        executor = make_executor(topology, session=session, master=master)
        driver = TopologyDriver(
            topology,
            coordinator_store,
            executor,
            resolved,
            observers=[RunLog(topology.id), *observers],
            name=name,
            accept_changes=accept_changes,
        )
        return driver.run()
    finally:
        coordinator_store.close()


def make_executor(
    topology: Topology,
    *,
    session: SparkSession | None = None,
    master: str = "local[*]",
    spark_log: Path | None = None,
) -> JobExecutor:
    """The executor for a master. PySpark is imported only if it is needed, because that takes a while.

    A Spark that it starts appends its own output to `spark_log`; None: it goes to stderr.
    """
    if master == "none" and session is None:
        from transactional.phases.local_executor import LocalExecutor

        return LocalExecutor(topology)
    if session is None and not _MASTER.fullmatch(master):
        raise ConfigError(
            f"{master!r} is not a Spark master: use local[*], local[2], spark://host:7077, k8s://https://host:443 or "
            "yarn; or none, to run the bolts in this process without Spark"
        )
    from transactional.spark.executor import SparkExecutor

    return SparkExecutor(topology, session, master=master, log=spark_log)
