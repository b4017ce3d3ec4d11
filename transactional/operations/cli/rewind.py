"""`transactional rewind`, `savepoint` and `reset`: take a topology back, keep what a rewind needs, or start it over."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from transactional.core.store import CoordinatorStore
from transactional.core.store.rules import check_free_to_reset
from transactional.core.store.sink_rules import check_nothing_unsent
from transactional.model.attempt import TxId
from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl, TopologyId, read_statuses, refuse_unused
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import load_topology, open_existing_store
from transactional.runtime.engine.clock import SystemClock


def rewind(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    to_txid: Annotated[
        int | None, typer.Option(help="The transaction that is to be the last one again; 0: the beginning.")
    ] = None,
    to_savepoint: Annotated[str | None, typer.Option(help="The savepoint whose transaction it is.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else only show what would go back.")] = False,
    accept_sent: Annotated[
        bool, typer.Option("--accept-sent", help="Let sinks send again what their targets have.")
    ] = False,
    journal: Annotated[
        Path | None,
        typer.Option(help="The journal of the runs, in which the rewind is recorded for `doctor --repair`."),
    ] = None,
) -> None:
    """Take a topology, its tables and its positions in the source back to an earlier transaction.

    It must not be running. What came after the transaction is read again by the next run. One that was interrupted is
    finished by the same command; until then nothing else can start.
    """
    from transactional.runtime.engine.history.journal import JournalWriter
    from transactional.runtime.engine.rewinding import plan_rewind
    from transactional.runtime.engine.rewinding import rewind as carry_out

    topology = load_topology(target)
    with ExitStack() as opened:
        coordinator_store = opened.enter_context(closing(open_existing_store(store)))
        txid = _txid_of(coordinator_store, topology.id, to_txid, to_savepoint)
        if not yes:
            plan = plan_rewind(topology, coordinator_store, txid)
            for line in plan.lines():
                print_line(line)
            print_line(f"nothing was changed. Pass --yes {'--accept-sent ' if plan.is_sent_again else ''}to do it")
            return
        owner = f"transactional rewind {socket.gethostname()}:{os.getpid()}"
        journal_writer = None if journal is None else opened.enter_context(closing(JournalWriter(journal)))
        plan = carry_out(
            *(topology, coordinator_store, txid), owner=owner, journal=journal_writer, accepts_sent=accept_sent
        )
        for line in plan.lines():
            print_line(line)
        print_line(f"done: the next run begins with transaction {txid + 1}")


def savepoint(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    name: Annotated[str | None, typer.Argument(help="The savepoint's name; none: show all.")] = None,
    txid: Annotated[int | None, typer.Option(help="The transaction; by default the last committed one.")] = None,
    drop: Annotated[bool, typer.Option("--drop", help="Keep it no longer.")] = False,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Keep what going back to a transaction takes, until the savepoint is dropped. The topology may be running.

    Store, logs and tables grow meanwhile: nothing since the transaction is deleted from the store and the tables' logs.
    """
    from transactional.runtime.engine.rewinding import plan_rewind

    if name is None:
        refuse_unused(context, ("txid", "drop"), "is for one savepoint: name it; without a name all are shown")
    if drop:
        refuse_unused(context, ("txid",), "is for a new savepoint, and --drop ends one: leave out one of the two")
    topology = load_topology(target)
    with closing(open_existing_store(store)) as coordinator_store:
        [status] = read_statuses(coordinator_store, topology.id)
        if name is None:
            for stored in coordinator_store.savepoints(topology.id):
                print_line(f"{stored.name}: transaction {stored.txid}, noted at {_format_time(stored.noted_at_ms)}")
        elif drop:
            if not coordinator_store.drop_savepoint(topology.id, name):
                raise _no_such_savepoint(coordinator_store, topology.id, name)
            print_line(f"savepoint {name!r} of topology {topology.id!r} is dropped")
        else:
            target_txid = TxId(status.committed_txid if txid is None else txid)
            plan_rewind(topology, coordinator_store, target_txid)
            if not coordinator_store.note_savepoint(topology.id, name, target_txid):
                raise ConfigError(
                    f"transaction {target_txid} of topology {topology.id!r} is no longer known to the store"
                )
            print_line(f"savepoint {name!r} of topology {topology.id!r}: transaction {target_txid}")


def reset(
    topology_id: TopologyId,
    store: StoreUrl = DEFAULT_STORE,
    drop_unsent: Annotated[
        bool, typer.Option("--drop-unsent", help="Drop what sinks have not published yet; it is never sent.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else only show what would be deleted.")] = False,
) -> None:
    """Delete everything that the store knows about a topology: its next run starts at the beginning of its source.

    Its tables are not touched, and a run is refused as long as they hold transactions that the store does not know:
    delete them, or give the topology other ones.
    """
    with closing(open_existing_store(store)) as coordinator_store:
        [status] = read_statuses(coordinator_store, topology_id)
        check_free_to_reset(status, SystemClock().wall_ms())
        sinks = coordinator_store.sinks(topology_id)
        if not drop_unsent:
            check_nothing_unsent(topology_id, sinks)
        attempts = len(coordinator_store.attempts(topology_id, limit=10_000))
        subject = f"topology {topology_id!r}: committed up to transaction {status.committed_txid}, {attempts} attempts"
        for name, progress in sinks.items():
            if progress.published is not None:
                print_line(f"what sink {name!r} has published stays; what is computed again is sent again")
        if not yes:
            print_line(f"{subject} would be deleted; its tables would not be touched. Pass --yes to do it")
            return
        if not coordinator_store.reset(topology_id, drop_unsent=drop_unsent):
            raise ConfigError(f"topology {topology_id!r} is no longer in the store")
        print_line(f"{subject} were deleted; its tables were not touched: delete them, or give it other ones")


def _txid_of(store: CoordinatorStore, topology_id: str, txid: int | None, name: str | None) -> TxId:
    if (txid is None) == (name is None):
        raise ConfigError("pass --to-txid or --to-savepoint, one of them")
    if txid is not None:
        return TxId(txid)
    for stored in store.savepoints(topology_id):
        if stored.name == name:
            return stored.txid
    raise _no_such_savepoint(store, topology_id, name or "")


def _no_such_savepoint(store: CoordinatorStore, topology_id: str, name: str) -> ConfigError:
    names = [stored.name for stored in store.savepoints(topology_id)]
    has = ", ".join(map(repr, names)) or "(none)"
    return ConfigError(f"topology {topology_id!r} has no savepoint {name!r}; it has: {has}{did_you_mean(name, names)}")


def _format_time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
