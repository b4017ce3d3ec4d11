"""Options that several commands have, and the look-up of topologies in a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from transactional.core.store import StoreReader, TopologyStatus
from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean
from transactional.operations.telemetry.log_format import LogFormat

DEFAULT_STORE = "sqlite:///transactional.db"

StoreUrl = Annotated[
    str,
    typer.Option("--store", envvar="TRANSACTIONAL_STORE", help="Where progress is stored: a SQLite or PostgreSQL URL."),
]
TopologyId = Annotated[str, typer.Argument(help="The topology's id.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="The configuration file; by default transactional.toml in this folder.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of TopologyConfig, such as lease_ms=20000."),
]
RunLogFormat = Annotated[
    LogFormat | None,
    typer.Option(
        "--log",
        envvar="TRANSACTIONAL_LOG",
        help="Log the run on stderr, a line per event worth one, instead of displaying every transaction.",
    ),
]
SparkLog = Annotated[
    Path | None,
    typer.Option(help="Append Spark's own output to this file; with --log it is transactional-spark.log by default."),
]
Standby = Annotated[
    bool, typer.Option("--standby", help="Wait while another process runs it; take over when its lease expires.")
]
CloseWindows = Annotated[
    bool, typer.Option("--close-windows", help="Once drained, close all windows by event time, then end.")
]
MetricsAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Serve /metrics for Prometheus, /livez and /readyz at this address."),
]
Host = Annotated[str, typer.Option(help="The address to listen on; others than this machine need a token file.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="A file with the token that requests need; by default a new one each time.")
]
HostNames = Annotated[
    list[str] | None, typer.Option(help="A further host name to answer to, such as a reverse proxy's.")
]


def refuse_unused(context: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise `ConfigError` if the command line has one of these parameters, which the command would ignore; the reason
    completes the sentence that begins with the option's name."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in names and source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{parameter.opts[0]} {reason}")


def read_statuses(store: StoreReader, topology_id: str | None) -> list[TopologyStatus]:
    """Read the statuses of all topologies, or of the one named. Raises `ConfigError` if it does not exist."""
    statuses = store.status(topology_id)
    if topology_id is not None and not statuses:
        topology_ids = [status.topology_id for status in store.status()]
        raise ConfigError(
            f"there is no topology {topology_id!r} in the store; it has: {', '.join(topology_ids) or '(none)'}"
            f"{did_you_mean(topology_id, topology_ids)}"
        )
    return statuses
