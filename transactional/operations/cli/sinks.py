"""`transactional sinks`: shows how far sinks are, and mends one whose target and store do not go together."""

from __future__ import annotations

import json
import os
import socket
from contextlib import closing
from typing import Annotated

import typer

from transactional.core.store.outbox import SinkProgress
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl, TopologyId, read_statuses
from transactional.operations.cli.output.lines import print_line
from transactional.operations.cli.output.status_json import sink_json
from transactional.operations.loading import load_topology, open_existing_store, open_for_reading

sinks_app = typer.Typer(no_args_is_help=True, help="Show and mend what sinks publish.")

Target = Annotated[
    str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one; not running.")
]
SinkName = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name in the topology.")]


@sinks_app.command(name="list")
def list_sinks(
    topology_id: TopologyId,
    store: StoreUrl = DEFAULT_STORE,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per sink.")] = False,
) -> None:
    """Show for each sink what it has published, what waits, and what was set aside."""
    with closing(open_for_reading(store)) as reader:
        read_statuses(reader, topology_id)
        letters = reader.sink_letters(topology_id)
        for name, progress in sorted(reader.sinks(topology_id).items()):
            count = sum(letter.count for letter in letters if letter.sink == name)
            if as_json:
                described = {"topology": topology_id, "sink": name, **sink_json(progress), "set_aside_records": count}
                print_line(json.dumps(described))
            else:
                print_line(f"{name}: {_describe(progress)}{f'; {count} records set aside' if count else ''}")


@sinks_app.command()
def accept(
    target: Target,
    name: SinkName,
    at_txid: Annotated[int, typer.Option("--at", help="The transaction up to which everything counts as sent.")],
    store: StoreUrl = DEFAULT_STORE,
    accept_sent: Annotated[
        bool, typer.Option("--accept-sent", help="Do it; else only show with what the target ends.")
    ] = False,
) -> None:
    """Let a sink continue after a transaction, whatever its target ends with.

    For a store that was restored from an older backup, and a target that has lost its end. If another process publishes
    with a copy of this store, it is fenced.
    """
    from transactional.runtime.publishing.mending import accept_position, read_standing

    topology = load_topology(target)
    with closing(open_existing_store(store)) as coordinator_store:
        [status] = read_statuses(coordinator_store, topology.id)
        if not accept_sent:
            print_line(read_standing(topology, status, name).summary)
            sink = topology.sinks[name]
            removal = f"; rows of later ones are taken out of {sink.target_name}" if sink.can_go_back else ""
            print_line(f"nothing was changed. Pass --accept-sent to continue after transaction {at_txid}{removal}")
            return
        print_line(accept_position(topology, coordinator_store, name, TxId(at_txid), owner=_owner("accept")))
        sink = topology.sinks[name]
        effect = "rows of later ones were taken out" if sink.can_go_back else "what its target has stays"
        print_line(f"done: sink {name!r} continues after transaction {at_txid}; {effect}")


@sinks_app.command()
def drop(
    topology_id: TopologyId,
    name: SinkName,
    store: StoreUrl = DEFAULT_STORE,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Do it; else only show what would be lost.")
    ] = False,
) -> None:
    """Delete what the store has of a sink: what waits is never sent.

    For a sink that is to leave the topology, or to get another target, while transactions wait.
    """
    from transactional.runtime.publishing.mending import drop_sink

    with closing(open_existing_store(store)) as coordinator_store:
        read_statuses(coordinator_store, topology_id)
        if not accept_loss:
            progress = coordinator_store.sinks(topology_id).get(name)
            if progress is None:
                raise ConfigError(f"the store has no sink {name!r} of topology {topology_id!r}")
            print_line(f"{name}: {_describe(progress)}")
            print_line("nothing was changed. Pass --accept-loss to drop it")
            return
        progress = drop_sink(coordinator_store, topology_id, name, owner=_owner("drop"))
        print_line(f"sink {name!r} of topology {topology_id!r} is dropped: {_describe(progress)}")


@sinks_app.command(name="set-aside")
def set_records_aside(
    target: Target,
    name: SinkName,
    txid: Annotated[int, typer.Option(help="The transaction whose records are set aside.")],
    record: Annotated[int | None, typer.Option(help="Only this one of them, counted from 0.")] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Move records that a target refuses to the store's letters of sinks. The next run continues behind them."""
    from transactional.model.config_sources import load_config
    from transactional.runtime.publishing.mending import set_aside

    topology = load_topology(target)
    config = load_config(topology.config, assignments=(), file=None).config
    with closing(open_existing_store(store)) as coordinator_store:
        read_statuses(coordinator_store, topology.id)
        count = set_aside(topology, coordinator_store, name, TxId(txid), record, config, owner=_owner("set-aside"))
        print_line(f"{name}: {count} record{'' if count == 1 else 's'} of transaction {txid} set aside")


def _describe(progress: SinkProgress) -> str:
    published = progress.published
    newest = "nothing published" if published is None else f"published up to transaction {published.attempt.txid}"
    if progress.boundary is not None:
        newest = f"settled up to transaction {progress.boundary.txid} by an operator"
    return f"{newest}; {progress.unsent_summary}" if progress.waiting else f"{newest}; nothing waits"


def _owner(command: str) -> str:
    return f"transactional sinks {command} {socket.gethostname()}:{os.getpid()}"
