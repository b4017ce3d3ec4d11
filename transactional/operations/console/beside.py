"""The console beside a run: in threads of its process, over a connection of its own, as long as the run lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from transactional.core.store import StoreReader
from transactional.operations.console.app import Console, application
from transactional.operations.web.guard import make_access
from transactional.operations.web.server import Address, bind, bind_or_take_any_port, serving_in_thread, url_of
from transactional.topology.topology import Topology


@contextmanager
def console_beside(
    reader: StoreReader, address: Address | None, topology: Topology, report: Callable[[str], None], *, store_url: str
) -> Iterator[None]:
    """Serve the console until the run has ended; `report` gets the line with its address.

    Without an address it is served to this machine only, on any free port if the usual one is in use. Its pages are
    those of `transactional ui`: they are read from the store. Raises `ConfigError` if it can't listen at `address`.
    """
    with closing(bind_or_take_any_port(Address()) if address is None else bind(address)) as listening, closing(reader):
        access = make_access(address or Address(), None, ())
        access = replace(access, cookie=f"transactional-{listening.getsockname()[1]}")
        report(f"the console is at {url_of(listening, access.token)}")
        topologies = {topology.id: topology}
        with serving_in_thread(
            application(Console(reader, access, topologies=topologies, store_url=store_url)), listening
        ):
            yield
