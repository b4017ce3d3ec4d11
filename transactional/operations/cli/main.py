"""The command line: `run`, `status`, `txns`, `describe`, and exit codes.

The other commands are in modules of their own beside this one. All of them are imported for each command and for
`--help`; what a command works with is therefore imported by its function, once it is called.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from transactional.core.machine.listing import format_awaited
from transactional.core.store.rules import FAILED
from transactional.core.store.set_aside import set_aside_of
from transactional.core.store.troubles import retry_at_stop
from transactional.model.config_sources import load_config
from transactional.model.errors import TransactionalError
from transactional.model.plumbing.redaction import escape_controls
from transactional.model.plumbing.tracebacks import first_line_with_location
from transactional.operations.cli import desired_state as cli_desired_state
from transactional.operations.cli import ui as cli_ui
from transactional.operations.cli.dead_letters import dead_letters
from transactional.operations.cli.doctor import doctor
from transactional.operations.cli.examples import examples
from transactional.operations.cli.explain_config import config_app
from transactional.operations.cli.options import (
    DEFAULT_STORE,
    Assignments,
    CloseWindows,
    ConfigFile,
    MetricsAddress,
    RunLogFormat,
    SparkLog,
    Standby,
    StoreUrl,
    TopologyId,
    read_statuses,
    refuse_unused,
)
from transactional.operations.cli.output.ending import end, exit_with_traceback, leave, show_warnings_briefly
from transactional.operations.cli.output.lines import first_line, print_line, print_table
from transactional.operations.cli.output.status_json import (
    attempt_json,
    read_awaited_partitions,
    read_maintenance_failures,
    read_open_windows,
    read_processing_executor,
    read_step_executors,
    status_json,
)
from transactional.operations.cli.output.statuses import (
    describe_dead_letters,
    describe_maintenance_failures,
    describe_open_windows,
    describe_sinks,
    describe_troubles,
    print_statuses,
)
from transactional.operations.cli.query import query, read
from transactional.operations.cli.rewind import reset, rewind, savepoint
from transactional.operations.cli.serve import serve
from transactional.operations.cli.sinks import sinks_app
from transactional.operations.cli.verify import verify
from transactional.operations.loading import load_topology, open_for_reading, open_store

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(is_requested: bool | None) -> None:  # noqa: FBT001 (typer calls it)
    if is_requested:
        from transactional.runtime.engine.history.run_history import installed_version

        print_line(f"transactional {installed_version()}")
        raise typer.Exit


@app.callback()
def transactional(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run topologies whose transactions each count exactly once, and manage them.

    MODULE:TOPOLOGY names a topology: a Python module in this folder, or an installed one, and in it a Topology or a
    function that returns one, such as words:build. COMMAND --help describes a command.
    """


@app.command()
def run(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    name: Annotated[str | None, typer.Option(help="The run's name in `status`; progress is stored by id.")] = None,
    max_pending: Annotated[int | None, typer.Option(help="Transactions in flight at once.")] = None,
    until_drained: Annotated[
        bool, typer.Option("--until-drained", help="End once the source has no more data.")
    ] = False,
    close_windows: CloseWindows = False,
    master: Annotated[str, typer.Option(help="Spark master; 'none' runs the bolts in this process.")] = "local[*]",
    attempts_max: Annotated[int | None, typer.Option(help="Stop after this many attempts at one transaction.")] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    journal: Annotated[Path | None, typer.Option(help="Append every event and action to this file.")] = None,
    accept_changes: Annotated[
        bool, typer.Option(help="Start even if the topology differs from the stored one.")
    ] = False,
    standby: Standby = False,
    inactive: Annotated[bool, typer.Option("--inactive", help="Issue no transaction before `activate`.")] = False,
    ui: Annotated[bool, typer.Option("--ui", help="Show the console's address, and serve it while this runs.")] = False,
    log: RunLogFormat = None,
    spark_log: SparkLog = None,
    metrics: MetricsAddress = None,
) -> None:
    """Run a topology until it is stopped (Ctrl-C, `kill`), drained, or can't continue.

    Ctrl-C stops it after the running commit phase; the next run continues from there. A second one ends it immediately.
    """
    from transactional.operations.cli import running
    from transactional.operations.cli.output.display import print_header
    from transactional.operations.cli.output.stderr_log import StderrLog
    from transactional.operations.doctor.start import refuse_early
    from transactional.operations.launch.running import console_of_run, make_executor
    from transactional.runtime.engine.driver import TopologyDriver

    if master == "none":
        refuse_unused(context, ("spark_log",), "is for Spark's own output, and there is none with --master none")
    with ExitStack() as stack:
        stderr_log = stack.enter_context(StderrLog(log)) if log is not None else None
        topology = load_topology(target)
        options = running.collect_options(max_pending, attempts_max, drains=until_drained, closes=close_windows)
        resolved = load_config(topology.config, file=config, assignments=assignments or (), options=options)
        topology.check_provider(resolved.config)
        output = running.choose_spark_log(spark_log, stderr_log)
        observers = running.make_observers(
            stack, topology, stderr_log=stderr_log, journal=journal, standby=standby, metrics=metrics
        )
        coordinator_store = stack.enter_context(closing(open_store(store)))
        if ui:
            stack.enter_context(console_of_run(topology, store, None, print_line))
        if master != "none":
            refuse_early(topology, coordinator_store)
        driver = TopologyDriver(
            topology,
            coordinator_store,
            make_executor(topology, resolved.config.processing, master=master, spark_log=output),
            resolved,
            observers=observers,
            accept_changes=accept_changes,
            name=name,
            standby=standby,
            inactive=inactive,
        )
        running.stop_on_signals(driver)
        print_header(topology, store, master)
        summary = driver.run()
    running.print_summary(summary, stderr_log)


@app.command()
def status(
    store: StoreUrl = DEFAULT_STORE,
    topology_id: Annotated[str | None, typer.Argument(help="A topology's id; by default all.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per topology.")] = False,
) -> None:
    """Show the topologies of a store: owner, progress, since when one has been failing, how the last run ended."""
    with closing(open_for_reading(store)) as reader:
        statuses = read_statuses(reader, topology_id)
        steps = {current.topology_id: read_step_executors(reader, current.topology_id) for current in statuses}
        waits = {current.topology_id: read_awaited_partitions(reader, current) for current in statuses}
        set_aside = {current.topology_id: set_aside_of(reader, current) for current in statuses}
        retries = {current.topology_id: retry_at_stop(reader, current) for current in statuses}
        windows = {current.topology_id: read_open_windows(reader, current) for current in statuses}
        processing = {
            current.topology_id: read_processing_executor(reader, current.topology_id) for current in statuses
        }
        upkeep = {current.topology_id: read_maintenance_failures(reader, current.topology_id) for current in statuses}
        sinks = {current.topology_id: reader.sinks(current.topology_id) for current in statuses}
    if as_json:
        for current in statuses:
            name = current.topology_id
            facts = steps[name], waits[name], processing[name], windows[name], upkeep[name], set_aside[name]
            print_line(json.dumps(status_json(current, *facts, sinks[name])))
        return
    print_statuses(statuses)
    for line in (*describe_troubles(statuses, retries), *describe_maintenance_failures(upkeep)):
        print_line(line)
    for topology, executor in processing.items():
        if ": " in executor:
            print_line(f"{topology}: the last transaction was processed {executor}")
    for topology, executors in steps.items():
        for component, executor in executors.items():
            if ": " in executor:  # there is no reason before anything is measured
                print_line(f"{topology}: step {component} of the last transaction: {executor}")
    for topology, partitions in waits.items():
        if partitions:
            print_line(f"{topology}: windows wait for {format_awaited(partitions)}, no record yet")
    for line in [*describe_open_windows(windows), *describe_dead_letters(set_aside), *describe_sinks(sinks, statuses)]:
        print_line(line)


@app.command()
def txns(
    topology_id: TopologyId,
    store: StoreUrl = DEFAULT_STORE,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many attempts.")] = 20,
    errors: Annotated[bool, typer.Option("--errors", help="Show full errors, with tracebacks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per attempt, with full errors.")] = False,
) -> None:
    """Show the last transactions: attempts, phases, rows, times and errors, newest first."""
    from transactional.operations.cli.output.display import print_attempts

    with closing(open_for_reading(store)) as reader:
        read_statuses(reader, topology_id)
        attempts = reader.attempts(topology_id, limit=limit)
    if as_json:
        for record in attempts:
            print_line(json.dumps(attempt_json(record)))
        return
    print_attempts(attempts)
    for record in attempts if errors else ():
        if record.error:
            error = escape_controls(record.error)
            print_line(f"\nattempt {record.attempt} {record.phase}{' in' * (record.phase == FAILED)} {error}")


class Format(StrEnum):
    """How `describe` shows a topology."""

    TEXT = "text"
    MERMAID = "mermaid"
    JSON = "json"


@app.command()
def describe(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    format: Annotated[Format, typer.Option(help="A tree, a Mermaid flowchart, or JSON.")] = Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show a topology: its components, what they read from, and in which phase of a transaction each one runs."""
    from transactional.operations.cli.output.display import components_tree
    from transactional.topology.describing import describe_topology, draw_mermaid

    if as_json:
        refuse_unused(context, ("format",), "and --json both say how to show it: leave out one of the two")
    topology = load_topology(target)
    match Format.JSON if as_json else format:
        case Format.TEXT:
            print_table(components_tree(topology))
        case Format.MERMAID:
            print_line(draw_mermaid(topology))
        case Format.JSON:
            print_line(json.dumps(describe_topology(topology), indent=2))


for _command in (
    cli_desired_state.activate,
    cli_desired_state.deactivate,
    cli_desired_state.drain,
    cli_desired_state.kill,
):
    app.command()(_command)
app.command()(reset)
app.command()(rewind)
app.command()(savepoint)
app.command("deadletters")(dead_letters)
app.command()(verify)
app.command()(doctor)
app.command()(query)
app.command()(read)
app.command()(serve)
app.command()(examples)
app.command()(cli_ui.ui)
app.add_typer(config_app, name="config")
app.add_typer(sinks_app, name="sinks")


def main() -> None:
    """Entry point. Exit code 0 on success; an error of the framework is one line on stderr, and its own exit code."""
    show_warnings_briefly()
    try:
        _run_command()
    except SystemExit as ended:
        end(ended.code)


def _run_command() -> None:
    try:
        app()
    except TransactionalError as error:
        sys.stderr.write(f"{error.code}: {first_line(first_line_with_location(error))}\n")
        leave(error)
    except Exception as error:
        exit_with_traceback(error)


if __name__ == "__main__":
    main()
