"""`transactional rewind`: take a topology and its tables back to an earlier transaction."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import Annotated

import typer

from transactional.attempt import TxId
from transactional.commands.display import plain_line
from transactional.commands.options import DEFAULT_STORE, StoreUrl
from transactional.loading import load_topology, open_existing_store


def rewind(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    to_txid: Annotated[int, typer.Option(help="The transaction that is to be the last one again; 0: the beginning.")],
    store: StoreUrl = DEFAULT_STORE,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it; else only show what would go back.")] = False,
) -> None:
    """Take a topology, its tables and its positions in the source back to an earlier transaction.

    It must not be running. What came after the transaction is read again by the next run. One that was interrupted is
    finished by the same command; until then nothing else can start.
    """
    from transactional.engine.rewinding import plan_rewind
    from transactional.engine.rewinding import rewind as carry_out

    topology = load_topology(target)
    with closing(open_existing_store(store)) as coordinator_store:
        if not yes:
            for line in plan_rewind(topology, coordinator_store, TxId(to_txid)).lines():
                plain_line(line)
            plain_line("nothing was changed. Pass --yes to do it")
            return
        owner = f"transactional rewind {socket.gethostname()}:{os.getpid()}"
        for line in carry_out(topology, coordinator_store, TxId(to_txid), owner=owner).lines():
            plain_line(line)
        plain_line(f"done: the next run begins with transaction {to_txid + 1}")
