"""The command line, `transactional run | status | txns`: options and exit codes. `display` holds the looks."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from transactional.config import TopologyConfig
from transactional.display import Display, attempts_table, first_line, plain_line, print_table, statuses_table
from transactional.driver import Observer, TopologyDriver
from transactional.errors import CommitStuck, ConfigError, TransactionalError
from transactional.journal import JournalWriter
from transactional.loading import load_topology, open_existing_store, open_store
from transactional.ports import CoordinatorStore, TopologyStatus
from transactional.running import make_executor
from transactional.schema import did_you_mean

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)

StoreUrl = Annotated[
    str,
    typer.Option("--store", envvar="TRANSACTIONAL_STORE", help="Where progress is kept: an SQLite or PostgreSQL URL."),
]
DEFAULT_STORE = "sqlite:///transactional.db"


@app.command()
def run(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    max_pending: Annotated[int, typer.Option(help="Transactions in flight at once.")] = 1,
    until_drained: Annotated[bool, typer.Option(help="End once the source has nothing more.")] = False,
    master: Annotated[str, typer.Option(help="Spark master; 'none' runs the bolts in this process.")] = "local[*]",
    attempts_max: Annotated[int | None, typer.Option(help="Give up after so many attempts at one transaction.")] = None,
    journal: Annotated[Path | None, typer.Option(help="Append every event and action to this file.")] = None,
    accept_changes: Annotated[
        bool, typer.Option(help="Go on although the topology differs from the stored one.")
    ] = False,
) -> None:
    """Run a topology until it is stopped (Ctrl-C), drained, or can't go on.

    Ctrl-C drains: nothing new starts, what is in its commit phase ends; the next run goes on from there. A second
    Ctrl-C ends at once.
    """
    config = TopologyConfig(max_spout_pending=max_pending, stop_when_drained=until_drained, attempts_max=attempts_max)
    topology = load_topology(target)
    with ExitStack() as stack:
        display = stack.enter_context(Display(topology))
        observers: list[Observer] = [display]
        if journal is not None:
            writer = JournalWriter(journal)
            stack.callback(writer.close)
            observers.append(writer)
        coordinator_store = open_store(store)
        stack.callback(coordinator_store.close)
        driver = TopologyDriver(
            topology,
            coordinator_store,
            make_executor(topology, master=master),
            config,
            observers=observers,
            accept_changes=accept_changes,
        )
        _stop_on_signals(driver)
        summary = driver.run()
    plain_line(
        f"{summary.transactions} transactions committed, the last is {summary.committed_txid}; "
        f"{summary.failures} attempts failed"
    )


def _stop_on_signals(driver: TopologyDriver) -> None:
    """The second signal of a kind kills: a bolt that hangs would keep the first one waiting."""

    def stop(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        driver.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


@app.command()
def status(store: StoreUrl = DEFAULT_STORE, topology_id: Annotated[str | None, typer.Argument()] = None) -> None:
    """Show the topologies of a store: who runs them, and how far they are."""
    with closing(open_existing_store(store)) as coordinator_store:
        print_table(statuses_table(_statuses(coordinator_store, topology_id)))


@app.command()
def txns(
    topology_id: Annotated[str, typer.Argument(help="The topology's id.")],
    store: StoreUrl = DEFAULT_STORE,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many attempts.")] = 20,
    errors: Annotated[bool, typer.Option("--errors", help="Show the errors in full, with their tracebacks.")] = False,
) -> None:
    """Show the last transactions: attempts, phases, rows, times and errors, newest first."""
    with closing(open_existing_store(store)) as coordinator_store:
        _statuses(coordinator_store, topology_id)
        attempts = coordinator_store.attempts(topology_id, limit=limit)
    print_table(attempts_table(attempts))
    for record in attempts if errors else ():
        if record.error:
            plain_line(f"\nattempt {record.attempt} failed in {record.error}")


def _statuses(store: CoordinatorStore, topology_id: str | None) -> list[TopologyStatus]:
    """The topologies, or the one named. Raises `ConfigError` when it is not there."""
    found = store.status(topology_id)
    if topology_id is not None and not found:
        known = [status.topology_id for status in store.status()]
        raise ConfigError(
            f"the store knows no topology {topology_id!r}; it knows: {', '.join(known) or '(none)'}"
            f"{did_you_mean(topology_id, known)}"
        )
    return found


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    sys.stderr.write(f"warning: {message}\n")


def main() -> None:
    """Entry point. Exit code 0 only when all went well; an error of the framework is one line on stderr, and code 1."""
    warnings.showwarning = _show_warning
    try:
        app()
    except TransactionalError as error:
        sys.stderr.write(f"{error.code}: {first_line(str(error))}\n")
        sys.stderr.flush()
        if isinstance(error, CommitStuck):
            os._exit(1)  # a thread that can't be cancelled would keep the process alive
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
