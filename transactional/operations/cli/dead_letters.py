"""`transactional deadletters`: lists the tuples that a topology has set aside, and sends them to their bolts again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from transactional.model.config_sources import ResolvedConfig, load_config
from transactional.model.errors import ConfigError
from transactional.operations.cli.options import DEFAULT_STORE, Assignments, ConfigFile, StoreUrl, refuse_unused
from transactional.operations.cli.output.lines import print_line, print_table
from transactional.operations.loading import load_topology, open_existing_store

if TYPE_CHECKING:
    from transactional.runtime.engine.letter_spout import LetterKey
    from transactional.topology.topology import Topology

FIXED_OPTIONS: Final[Mapping[str, int]] = {"max_spout_pending": 1, "stop_when_drained": True, "close_windows": False}
"""Options that every replay of letters has, whatever the topology's are. A transaction is planned from the letters that
still wait, so its predecessor has to be committed first; the run ends after the letters, and closes no window then."""


def dead_letters(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    letters: Annotated[
        list[str] | None, typer.Argument(metavar="[TXID:NUMBER]…", help="Which letters; by default all.")
    ] = None,
    replay: Annotated[bool, typer.Option("--replay", help="Send them to their bolts again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON per letter, with full errors.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    master: Annotated[str, typer.Option(help="Spark master; 'none' runs the bolts in this process.")] = "local[*]",
    attempts_max: Annotated[int, typer.Option(help="Attempts after which a letter is set aside again.")] = 1,
    journal: Annotated[
        Path | None, typer.Option(help="The journal of the runs, to which every event and action is appended.")
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Show the tuples that a topology has set aside, or retry them.

    With --replay the topology must not be running elsewhere: the command runs transactions that contain only letters,
    each letter once, with the topology's options. One that fails again becomes a new letter.
    """
    topology = load_topology(target)
    keys = [_parse_letter_key(text) for text in letters] if letters else None
    if replay:
        refuse_unused(context, ("as_json",), "is for letters that are shown, and --replay shows none")
        resolved = _resolve_replay_config(topology, config, assignments or (), attempts_max)
        _replay_letters(topology, keys, store, master, resolved, journal)
    else:
        refuse_unused(
            context,
            ("master", "attempts_max", "journal", "config", "assignments"),
            "is for --replay: without it letters are only shown",
        )
        _show_letters(topology, keys, as_json=as_json)


def _resolve_replay_config(
    topology: Topology, file: Path | None, assignments: Sequence[str], attempts_max: int
) -> ResolvedConfig:
    """Return the topology's options, but for `FIXED_OPTIONS` and the number of attempts, which the command has."""
    for assignment in assignments:
        name = assignment.partition("=")[0].strip()
        if name in FIXED_OPTIONS:
            raise ConfigError(f"--set {name} is not for --replay, which always runs with {name}={FIXED_OPTIONS[name]}")
    options: dict[str, tuple[str, Any]] = {
        **{name: ("deadletters --replay", setting) for name, setting in FIXED_OPTIONS.items()},
        "attempts_max": ("--attempts-max", attempts_max),
        "message_retries_max": ("--attempts-max", max(0, attempts_max - 1)),
    }
    resolved = load_config(topology.config, file=file, assignments=assignments, options=options)
    topology.check_provider(resolved.config)
    return resolved


def _show_letters(topology: Topology, keys: list[LetterKey] | None, *, as_json: bool) -> None:
    from transactional.operations.cli.output.display import letters_table
    from transactional.runtime.engine.letter_spout import all_letters

    rows = [row for row in all_letters(topology) if keys is None or (row["transaction"], row["number"]) in keys]
    if as_json:
        for row in rows:
            print_line(json.dumps(row))
    else:
        print_table(letters_table(rows))


def _replay_letters(
    topology: Topology,
    keys: list[LetterKey] | None,
    store: str,
    master: str,
    resolved: ResolvedConfig,
    journal: Path | None,
) -> None:
    from transactional.core.ports.stream_names import RUNS_MAX
    from transactional.operations.launch.running import make_executor
    from transactional.operations.telemetry.run_log import RunLog
    from transactional.runtime.engine.driver import TopologyDriver
    from transactional.runtime.engine.history.journal import JournalWriter
    from transactional.runtime.engine.history.observing import Observer
    from transactional.runtime.engine.letter_spout import LetterSpout, waiting_letters

    with ExitStack() as opened:
        coordinator_store = opened.enter_context(closing(open_existing_store(store)))
        runs = coordinator_store.runs(topology.id, limit=RUNS_MAX)
        waiting_letters(topology, keys, runs)  # raises before anything runs
        spout = LetterSpout(topology, keys, runs)
        replaying = replace(topology, spout=spout)
        executor = make_executor(replaying, resolved.config.processing, master=master)
        observers = list[Observer]([RunLog(replaying.id)])
        if journal is not None:
            observers.append(opened.enter_context(closing(JournalWriter(journal))))
        driver = TopologyDriver(replaying, coordinator_store, executor, resolved, observers=observers)
        summary = driver.run()
    print_line(f"{summary.transactions} transactions of dead letters committed, the last is {summary.committed_txid}")
    if spout.returned:
        names = " ".join(f"{txid}:{number}" for txid, number in sorted(spout.returned))
        print_line(
            f"{len(spout.returned)} stay where they are, for their transaction failed and none of them alone is at "
            f"fault: {names}"
        )


def _parse_letter_key(text: str) -> LetterKey:
    txid, _, number = text.partition(":")
    if not (txid.isdecimal() and number.isdecimal()):
        raise ConfigError(f"{text!r} is not a dead letter; the form is TXID:NUMBER, such as 7:0")
    return int(txid), int(number)
