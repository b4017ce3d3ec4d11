"""The console beside a run: in threads of its process, over a connection of its own, as long as the run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from transactional.core.store import StoreReader
from transactional.operations.console.app import Console, application
from transactional.operations.console.data.live import Live
from transactional.operations.web.guard import access_of
from transactional.operations.web.server import Address, beside, bind, bind_or_take_any_port, url_of
from transactional.topology.topology import Topology


@contextmanager
def console_beside(
    reader: StoreReader, address: Address | None, topology: Topology, report: Callable[[str], None], *, store_url: str
) -> Iterator[Live]:
    """Serve the console until the run has ended; `report` gets the line with its address.

    Without an address it is served to this machine only, on any free port if the usual one is taken. The yielded
    object has to observe the run. Raises `ConfigError` if the port of `address` is taken.
    """
    live = Live(topology.id)
    with closing(bind_or_take_any_port(Address()) if address is None else bind(address)) as listening, closing(reader):
        access = access_of(address or Address(), None, ())
        access = replace(access, cookie=f"transactional-{listening.getsockname()[1]}")
        report(f"the console is at {url_of(listening, access.token)}")
        known = {topology.id: topology}
        with beside(application(Console(reader, access, topologies=known, live=live, store_url=store_url)), listening):
            yield live
