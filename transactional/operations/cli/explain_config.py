"""`transactional config explain`: every option, its value, and where that came from."""

from __future__ import annotations

from typing import Annotated

import typer

from transactional.model.config_sources import load_config
from transactional.operations.cli.options import Assignments, ConfigFile
from transactional.operations.cli.output.lines import print_table
from transactional.operations.loading import load_topology

config_app = typer.Typer(no_args_is_help=True, help="Inspect the options of a topology.")


@config_app.command()
def explain(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:TOPOLOGY]", help="A topology, to include the options set in its code."),
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Show each option, its value, and its source: default, file, environment, code, or command line."""
    from transactional.operations.cli.output.display import settings_table

    code = load_topology(target).config if target is not None else {}
    resolved = load_config(code, file=config, assignments=assignments or ())
    print_table(settings_table(resolved.settings))
