"""`transactional ui`: the console over a store, whether anything runs or not, or a page of it as a file."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from transactional.model.errors import ConfigError
from transactional.operations.cli.options import (
    DEFAULT_STORE,
    Host,
    HostNames,
    StoreUrl,
    TokenFile,
    read_statuses,
    refuse_unused,
)
from transactional.operations.cli.output.lines import print_line
from transactional.operations.console.needs import require_console
from transactional.operations.loading import load_topology, open_existing_store, open_for_reading
from transactional.runtime.engine.clock import SystemClock


def ui(
    context: typer.Context,
    topology_id: Annotated[
        str | None, typer.Argument(help="The topology that --out writes; needed if the store has several.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0 takes any that is free.")] = 8787,
    token_file: TokenFile = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Pages have buttons: activate, deactivate, drain, kill.")
    ] = False,
    app: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:TOPOLOGY", help="A topology whose tables are to be shown and examined, too."),
    ] = None,
    host_name: HostNames = None,
    page_file: Annotated[
        Path | None,
        typer.Option("--out", help="Write the overview of a topology to this file, for a ticket or to keep, and end."),
    ] = None,
) -> None:
    """Show the topologies of a store as pages in a browser, live while they run.

    Nothing can be changed there without --allow-actions.
    Open the printed address. Ctrl-C ends it.
    """
    require_console()
    if page_file is not None:
        refuse_unused(
            context,
            ("host", "port", "token_file", "allow_actions", "app", "host_name"),
            "is for pages that are served, and --out writes one to a file: leave out one of the two",
        )
        _write_page(store, topology_id, page_file)
        return
    if topology_id is not None:
        raise ConfigError(f"{topology_id} is for --out, which writes its page; without --out all topologies are shown")
    from transactional.operations.console.app import Console, application
    from transactional.operations.console.rendering import load_templates
    from transactional.operations.web.guard import make_access
    from transactional.operations.web.server import Address, bind, serve_alone, url_of

    address = Address(host, port)
    access = make_access(address, token_file, host_name or ())
    topologies = {topology.id: topology for topology in map(load_topology, app or ())}
    with ExitStack() as opened:
        reader = opened.enter_context(closing(open_for_reading(store)))
        reader.status()  # a store that can't be used is reported before anybody looks
        writable = opened.enter_context(closing(open_existing_store(store))) if allow_actions else None
        listening = opened.enter_context(closing(bind(address)))
        access = replace(access, cookie=f"transactional-{listening.getsockname()[1]}")
        if not address.is_loopback:
            print_line("warning: there is no TLS: anyone on the way can read the token; put a reverse proxy before it")
        load_templates()
        if token_file is None:
            print_line(f"the console is at {url_of(listening, access.token)}")
        else:
            print_line(f"the console is at {url_of(listening)}?token=TOKEN, with the token of {token_file}")
        console = Console(reader, access, writable=writable, topologies=topologies, store_url=store)
        serve_alone(application(console), listening)


def _write_page(store: str, topology_id: str | None, page_file: Path) -> None:
    """Write the overview of a topology as one file that needs nothing else."""
    from transactional.operations.console.export import render_page_file

    with closing(open_for_reading(store)) as reader:
        statuses = read_statuses(reader, topology_id)
        if len(statuses) != 1:
            ids = ", ".join(status.topology_id for status in statuses) or "none"
            raise ConfigError(
                f"--out writes the page of one topology, and the store has: {ids}; name one: transactional ui ID --out "
                f"{page_file}"
            )
        page = render_page_file(reader, statuses[0], SystemClock().wall_ms())
    try:
        page_file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{page_file} can't be written: {error.strerror}") from error
    print_line(f"{page_file} has the overview of {statuses[0].topology_id}, {len(page) // 1024} KB")
