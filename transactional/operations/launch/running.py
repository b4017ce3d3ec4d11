"""`run_topology` and `start_topology`: a topology, a store's URL and an executor, combined in one call."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transactional.core.ports import JobExecutor
from transactional.model.config import TopologyConfig
from transactional.model.config_sources import ResolvedConfig, load_config
from transactional.model.errors import ConfigError, brief_errors
from transactional.model.names import DISTRIBUTION
from transactional.operations.loading import check_topology, open_beside_writer, open_store
from transactional.topology.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from transactional.operations.launch.topology_run import TopologyRun
    from transactional.runtime.engine.driver import TopologyDriver
    from transactional.runtime.engine.history.observing import Observer
    from transactional.runtime.engine.history.run_history import RunSummary
    from transactional.runtime.executors.spark.executor import SparkExecutor

_log = logging.getLogger(__name__)
_MASTER = re.compile(r"local(-cluster)?(\[.+\])?|spark://.+|k8s://.+|yarn")


def run_topology(
    topology: Topology,
    *,
    store: str = "sqlite:///transactional.db",
    config: TopologyConfig | Mapping[str, object] | None = None,
    session: SparkSession | None = None,
    master: str = "local[*]",
    observers: Sequence[Observer] = (),
    name: str | None = None,
    accept_changes: bool = False,
    standby: bool = False,
    inactive: bool = False,
    ui: str | None = None,
    metrics: str | None = None,
) -> RunSummary:
    """Run a topology in this process until it is done, and return a summary.

    A complete `TopologyConfig` sets every option. A mapping sets those that it names, overriding
    `builder.build(config=…)`, the environment and the file transactional.toml. `name` is the run's name in
    `transactional status`.

    With `accept_changes` a topology that differs from the stored one continues from the stored progress, and replaces
    the stored one once its tables are fenced; otherwise `TopologyChanged` is raised.

    With `standby` it first waits until no other process runs the topology. With `inactive` it issues no transaction
    before `transactional activate`.

    With `session` its jobs run on that Spark session; otherwise one is started on `master`, where `"none"` means no
    Spark at all: the bolts then run in this process. Raises `ConfigError`, a `FatalError`, or `OperatingError` if a
    table's storage does not respond at the start.

    `ui` is where the console is to be served while this runs, such as `"127.0.0.1:8787"`, or `":0"` for any free port;
    its address is written to stderr. `metrics` is where `/metrics`, `/livez` and `/readyz` are, such as
    `"127.0.0.1:9464"`. Traces are made if OpenTelemetry's environment variables want them.
    """
    with (
        brief_errors(),
        _prepare_driver(
            topology,
            store=store,
            config=config,
            session=session,
            master=master,
            observers=observers,
            ui=ui,
            metrics=metrics,
            name=name,
            accept_changes=accept_changes,
            standby=standby,
            inactive=inactive,
        ) as driver,
    ):
        return driver.run()


def start_topology(
    topology: Topology,
    *,
    store: str = "sqlite:///transactional.db",
    config: TopologyConfig | Mapping[str, object] | None = None,
    session: SparkSession | None = None,
    master: str = "local[*]",
    observers: Sequence[Observer] = (),
    name: str | None = None,
    accept_changes: bool = False,
    standby: bool = False,
    inactive: bool = False,
    ui: str | None = None,
    metrics: str | None = None,
) -> TopologyRun:
    """Run a topology in a thread of this process, as a notebook does, and return its handle.

    The arguments are those of `run_topology`. It returns once the run leads, its tables being fenced, or stands by;
    what keeps it from that is raised here, what ends it later by the handle. Raises `ConfigError` if this process runs
    the topology already.
    """
    from transactional.operations.launch.topology_run import TopologyRun

    with brief_errors():
        check_topology("the topology to run", topology)
        run = TopologyRun(topology.id, store)
        run.begin(
            _prepare_driver(
                topology,
                store=store,
                config=config,
                session=session,
                master=master,
                observers=[run.progress, *observers],
                ui=ui,
                metrics=metrics,
                name=name,
                accept_changes=accept_changes,
                standby=standby,
                inactive=inactive,
            )
        )
        return run


@contextmanager
def _prepare_driver(
    topology: Topology,
    *,
    store: str,
    config: TopologyConfig | Mapping[str, object] | None,
    session: SparkSession | None,
    master: str,
    observers: Sequence[Observer],
    ui: str | None,
    metrics: str | None,
    **driver_options: Any,
) -> Iterator[TopologyDriver]:
    """Yield the driver of a run that is about to start, with its console, metrics and traces; close them afterwards."""
    # A program that only declares a topology, as every task does, imports nothing of what runs it.
    from transactional.operations.doctor.start import refuse_early
    from transactional.operations.telemetry.run_log import RunLog
    from transactional.operations.telemetry.tracing import tracing
    from transactional.runtime.engine.driver import TopologyDriver

    check_topology("the topology to run", topology)
    resolved = _resolve_config(topology, config)
    with ExitStack() as stack:
        coordinator_store = stack.enter_context(closing(open_store(store)))
        audience: list[Observer] = [RunLog(topology.id), *observers]
        if ui is not None:
            stack.enter_context(console_of_run(topology, store, ui, _to_stderr))
        if metrics is not None:
            audience += stack.enter_context(metrics_of_run(topology, metrics, _to_stderr))
        audience += stack.enter_context(tracing(topology.id))
        if session is None and master != "none":
            refuse_early(topology, coordinator_store)
        executor = make_executor(topology, resolved.config.processing, session=session, master=master)
        yield TopologyDriver(topology, coordinator_store, executor, resolved, observers=audience, **driver_options)


def _resolve_config(topology: Topology, config: TopologyConfig | Mapping[str, object] | None) -> ResolvedConfig:
    if isinstance(config, TopologyConfig):
        resolved = ResolvedConfig(config, ())
    else:
        resolved = load_config({**topology.config, **(config or {})})
    topology.check_provider(resolved.config)
    return resolved


@contextmanager
def console_of_run(
    topology: Topology, store: str, address: str | None, report: Callable[[str], None]
) -> Iterator[None]:
    """Serve the console beside a run that is about to start.

    `report` gets a line with its address, which contains the token. Without an address only this machine
    can connect, on any free port if the usual one is in use. Raises `ConfigError`.
    """
    from transactional.operations.console.needs import require_console

    require_console()
    from transactional.operations.console.beside import console_beside
    from transactional.operations.web.server import parse_address

    with closing(open_store(store)) as new_store:
        new_store.desired("")  # the run is about to make its tables; whoever looks first may be earlier
    bind_address = None if address is None else parse_address(address)
    with console_beside(open_beside_writer(store), bind_address, topology, report, store_url=store):
        yield


@contextmanager
def metrics_of_run(topology: Topology, address: str, report: Callable[[str], None]) -> Iterator[list[Observer]]:
    """Serve the metrics and the health of a run that is about to start. The yielded observers have to observe it.

    `report` gets a line that ends with their address. Raises `ConfigError`.
    """
    from transactional.operations.telemetry.tracing import exporter_name

    try:
        from transactional.operations.telemetry.serving import serving_metrics
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: metrics need one more package: pip install '{DISTRIBUTION}[metrics]'") from error
    sets_aside = [component.id for component in topology.components] if topology.dead_letters is not None else []
    is_traced = exporter_name(os.environ) is not None
    with serving_metrics(topology.id, address, sets_aside, is_traced=is_traced) as (observers, url):
        report(f"metrics are at {url}")
        yield observers


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def make_executor(
    topology: Topology,
    processing: str = "spark",
    *,
    session: SparkSession | None = None,
    master: str = "local[*]",
    spark_log: Path | None = None,
) -> JobExecutor:
    """Return the executor for a master and the option `processing`. PySpark is imported only if it is needed, because
    that takes a while.

    A Spark that it starts appends its own output to `spark_log`; None: it goes to stderr.
    """
    is_without = master == "none" and session is None
    if processing == "workers" or (processing == "auto" and is_without):
        from transactional.runtime.executors.workers.executor import WorkerExecutor

        return WorkerExecutor(topology)
    if is_without:
        from transactional.runtime.executors.local import LocalExecutor

        return LocalExecutor(topology)
    if processing == "auto":
        return _make_auto_executor(topology, session, master, spark_log)
    return _make_spark_executor(topology, session, master, spark_log)


def _make_auto_executor(
    topology: Topology, session: SparkSession | None, master: str, spark_log: Path | None
) -> JobExecutor:
    """Return an executor of workers and Spark, or of Spark alone if the topology needs it, which is logged."""
    from transactional.runtime.executors.auto.choice import ExecutorChooser
    from transactional.runtime.executors.auto.executor import GearedExecutor
    from transactional.runtime.executors.workers.executor import WorkerExecutor
    from transactional.runtime.executors.workers.spark_requirement import reason_for_spark

    spark = _make_spark_executor(topology, session, master, spark_log)
    conf = {} if session is None else dict(session.sparkContext.getConf().getAll())
    if (reason := reason_for_spark(topology, conf)) is not None:
        _log.warning("topology %r is processed on Spark throughout: %s", topology.id, reason)
        return spark
    workers, chooser = WorkerExecutor(topology), ExecutorChooser(_expected_slots(session, master))
    return GearedExecutor(workers, spark, chooser, workers_find_tuples=workers.finds_tuples)


def _expected_slots(session: SparkSession | None, master: str) -> int:
    """How many tasks run at a time on a Spark that may not be there yet; twice the cores of this machine if only the
    cluster knows."""
    if session is not None:
        return session.sparkContext.defaultParallelism
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    of_local = re.fullmatch(r"local(?:\[(\d+|\*).*\])?", master)
    if of_local is None:
        return 2 * cores
    return cores if of_local[1] == "*" else int(of_local[1] or 1)


def _make_spark_executor(
    topology: Topology, session: SparkSession | None, master: str, spark_log: Path | None
) -> SparkExecutor:
    if session is None and not _MASTER.fullmatch(master):
        raise ConfigError(
            f"{master!r} is not a Spark master: use local[*], local[2], spark://host:7077, k8s://https://host:443 or "
            "yarn; or none, to run the bolts in this process without Spark"
        )
    from transactional.runtime.executors.spark.executor import SparkExecutor

    return SparkExecutor(topology, session, master=master, log=spark_log)
