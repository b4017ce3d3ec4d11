"""`transactional activate | deactivate | drain | kill`: said in the store, from any process; the run obeys.

These are Storm's commands (rows T32, O4, O5), and `drain`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from transactional.commands.display import plain_line
from transactional.commands.options import DEFAULT_STORE, StoreUrl, TopologyId, statuses_of
from transactional.errors import ConfigError
from transactional.loading import open_existing_store
from transactional.store import DesiredState, TopologyStatus


def activate(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Have a topology issue new transactions again. Calls off a drain, or a kill that is still waited for."""
    _desire(store, topology_id, DesiredState.ACTIVE, "new transactions are issued")


def deactivate(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Have a topology issue no new transaction, also after a restart, until it is activated.

    What is in flight is finished, and retried if need be.
    """
    _desire(store, topology_id, DesiredState.INACTIVE, "no new transaction until it is activated")


def drain(topology_id: TopologyId, store: StoreUrl = DEFAULT_STORE) -> None:
    """Have a topology issue no new transaction, commit what is in flight, and end its run with exit code 0.

    The next run is active again.
    """
    _desire(store, topology_id, DesiredState.DRAINING, "no new transaction; the run ends once all is committed")


def kill(
    topology_id: TopologyId,
    wait: Annotated[
        int, typer.Option("--wait", "-w", min=0, help="Seconds in which what is in flight may be finished.")
    ] = 30,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Deactivate a topology, wait, then stop its run, as Storm does. What is not committed by then comes with the next.

    The next run is active again.
    """
    then = f"no new transaction; the run is stopped in {wait} s"
    _desire(store, topology_id, DesiredState.KILLED, then, wait_ms=1_000 * wait)


def _desire(url: str, topology_id: str, state: DesiredState, then: str, *, wait_ms: int = 0) -> None:
    with closing(open_existing_store(url)) as store:
        [status] = statuses_of(store, topology_id)
        if state is DesiredState.KILLED and not status.is_leased:
            raise ConfigError(f"no process runs topology {topology_id!r}: there is nothing to kill")
        store.desire(topology_id, state, wait_ms=wait_ms)
    plain_line(f"{topology_id} is to be {state.value}: {then} ({_who(status)})")


def _who(status: TopologyStatus) -> str:
    if status.is_leased:
        return f"{status.owner} looks once a second"
    return "nobody runs it now; its next run will find this"
