"""`transactional activate | deactivate | drain | kill`: stored in the store, by any process; the run follows.

All but `drain` are Storm's commands.
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from transactional.core.store import DesiredState, TopologyStatus
from transactional.model.errors import ConfigError
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl, TopologyId, read_statuses
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import open_existing_store


def activate(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Let a topology issue new transactions again. Cancels a drain, or a kill that is still waiting."""
    _store_desired_state(store, topology_id, DesiredState.ACTIVE, "new transactions are issued")


def deactivate(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Stop a topology from issuing new transactions, even after a restart, until it is activated.

    Transactions in flight are finished, and retried if necessary.
    """
    _store_desired_state(store, topology_id, DesiredState.INACTIVE, "no new transactions until it is activated")


def drain(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Stop issuing new transactions, commit those in flight, and end the run with exit code 0.

    The next run is active again.
    """
    _store_desired_state(
        store, topology_id, DesiredState.DRAINING, "no new transactions; the run ends once everything is committed"
    )


def kill(
    topology_id: TopologyId,
    wait: Annotated[
        int, typer.Option("--wait", "-w", min=0, help="Seconds for finishing transactions in flight.")
    ] = 30,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Deactivate a topology, wait, then stop its run, as Storm does. Whatever is uncommitted then is replayed later.

    The next run is active again.
    """
    consequence = f"no new transactions; the run is stopped in {wait} s"
    _store_desired_state(store, topology_id, DesiredState.KILLED, consequence, wait_ms=1_000 * wait)


def _store_desired_state(
    url: str, topology_id: str, state: DesiredState, consequence: str, *, wait_ms: int = 0
) -> None:
    with closing(open_existing_store(url)) as store:
        [status] = read_statuses(store, topology_id)
        if state is DesiredState.KILLED and not status.is_leased:
            raise ConfigError(f"topology {topology_id!r} is not running: there is nothing to kill")
        store.desire(topology_id, state, wait_ms=wait_ms)
    print_line(f"{topology_id} is now {state.value}: {consequence} ({_reader_of_request(status)})")


def _reader_of_request(status: TopologyStatus) -> str:
    if status.is_leased:
        return f"{status.owner} checks once a second"
    return "not running; the next run will pick this up"
