"""`transactional serve`: a topology's queries over HTTP."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from transactional.model.errors import ConfigError
from transactional.model.names import DISTRIBUTION
from transactional.operations.cli.options import DEFAULT_STORE, Host, HostNames, StoreUrl, TokenFile
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import load_topology


def serve(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 takes any that is free.")] = 8788,
    token_file: TokenFile = None,
    host_name: HostNames = None,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="A question that takes longer is given up, and answered 504.")
    ] = 30.0,
) -> None:
    """Answer a topology's queries over HTTP, whether or not it runs: GET /drpc/NAME/VALUE...

    A request needs the printed token, as `Authorization: Bearer TOKEN`; GET /livez needs none. Ctrl-C ends it.
    """
    try:
        from transactional.operations.queries.client import QueryClient
        from transactional.operations.queries.serving import application
        from transactional.operations.queries.slots import QuestionSlots
        from transactional.operations.web.guard import make_access
        from transactional.operations.web.server import Address, bind, serve_alone, url_of
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: serving needs more packages: pip install '{DISTRIBUTION}[ui]'") from error

    address = Address(host, port)
    access = make_access(address, token_file, host_name or (), server="the server of queries")
    topology = load_topology(target)
    if not topology.queries:
        raise ConfigError(f"topology {topology.id!r} has no query: declare one with @topology.query('name', 'fields')")
    with QueryClient(topology, store) as client, closing(bind(address, server="the server of queries")) as listening:
        if not address.is_loopback:
            print_line("warning: there is no TLS: anyone on the way can read the token; put a reverse proxy before it")
        print_line(f"queries are answered at {url_of(listening)}drpc/, for requests with")
        print_line(f"Authorization: Bearer {access.token}" if token_file is None else "the token of the token file")
        serve_alone(application(client, access, QuestionSlots(timeout_s)), listening)
