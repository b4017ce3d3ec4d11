"""`transactional reset`: forget a topology's stored progress."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from transactional.commands.display import plain_line
from transactional.commands.options import DEFAULT_STORE, StoreUrl, TopologyId, statuses_of
from transactional.engine.clock import SystemClock
from transactional.errors import ConfigError
from transactional.loading import open_existing_store
from transactional.store_rules import check_free_to_reset


def reset(
    topology_id: TopologyId,
    store: StoreUrl = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else it is only said what would be.")] = False,
) -> None:
    """Forget all that the store knows of a topology: its next run starts anew, at the beginning of its source.

    Its tables stay as they are, and a run is refused as long as they hold what the store knows nothing of: delete
    them, or give the topology others.
    """
    with closing(open_existing_store(store)) as coordinator_store:
        [status] = statuses_of(coordinator_store, topology_id)
        check_free_to_reset(status, SystemClock().wall_ms())
        kept = len(coordinator_store.attempts(topology_id, limit=10_000))
        what = f"topology {topology_id!r}: committed up to transaction {status.committed_txid}, {kept} attempts"
        if not yes:
            plain_line(f"{what} would be forgotten; its tables would stay as they are. Say --yes to do it")
            return
        if not coordinator_store.reset(topology_id):
            raise ConfigError(f"the store knows no topology {topology_id!r} any more")
        plain_line(f"{what} are forgotten; its tables are as they were: delete them, or give it others")
