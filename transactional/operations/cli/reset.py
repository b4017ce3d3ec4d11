"""`transactional reset`: delete a topology's stored progress."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from transactional.core.store.rules import check_free_to_reset
from transactional.core.store.sink_rules import check_nothing_unsent
from transactional.model.errors import ConfigError
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl, TopologyId, read_statuses
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import open_existing_store
from transactional.runtime.engine.clock import SystemClock


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
