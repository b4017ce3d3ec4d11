"""`transactional deadletters`: lists the tuples that a topology has set aside, and sends them to their bolts again."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from transactional.model.config_sources import ResolvedConfig, load_config
from transactional.model.errors import ConfigError
from transactional.operations.cli.options import DEFAULT_STORE, Assignments, ConfigFile, StoreUrl
from transactional.operations.cli.output.lines import plain_line, print_table
from transactional.operations.loading import load_topology, open_existing_store

if TYPE_CHECKING:
    from transactional.runtime.engine.letter_spout import LetterKey
    from transactional.topology.topology import Topology

_OF_A_REPLAY: Final = ("max_spout_pending=1", "stop_when_drained=true", "close_windows=false")
"""What no option changes. A transaction is planned of the letters that wait, so that the one before has to be
committed; the run ends after the letters, and closes no window for that."""


def dead_letters(
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
    keys = [_key(text) for text in letters] if letters else None
    if replay:
        own = {"attempts_max": attempts_max, "message_retries_max": max(0, attempts_max - 1)}
        options = {name: ("--attempts-max", value) for name, value in own.items()}
        given = [*(assignments or ()), *_OF_A_REPLAY]
        resolved = load_config(topology.config, file=config, assignments=given, options=options)
        topology.check_provider(resolved.config)
        _replay(topology, keys, store, master, resolved, journal)
    else:
        _show(topology, keys, as_json=as_json)


def _show(topology: Topology, keys: list[LetterKey] | None, *, as_json: bool) -> None:
    from transactional.operations.cli.output.display import letters_table
    from transactional.runtime.engine.letter_spout import all_letters

    rows = [row for row in all_letters(topology) if keys is None or (row["transaction"], row["number"]) in keys]
    if as_json:
        for row in rows:
            plain_line(json.dumps(row))
    else:
        print_table(letters_table(rows))


def _replay(
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
    from transactional.runtime.engine.letter_spout import LetterSpout, letters_of

    with ExitStack() as opened:
        coordinator_store = opened.enter_context(closing(open_existing_store(store)))
        runs = coordinator_store.runs(topology.id, limit=RUNS_MAX)
        letters_of(topology, keys, runs)  # raises before anything runs
        spout = LetterSpout(topology, keys, runs)
        replaying = replace(topology, spout=spout)
        executor = make_executor(replaying, resolved.config.processing, master=master)
        observers = list[Observer]([RunLog(replaying.id)])
        if journal is not None:
            observers.append(opened.enter_context(closing(JournalWriter(journal))))
        driver = TopologyDriver(replaying, coordinator_store, executor, resolved, observers=observers)
        summary = driver.run()
    plain_line(f"{summary.transactions} transactions of dead letters committed, the last is {summary.committed_txid}")
    if spout.given_back:
        names = " ".join(f"{txid}:{number}" for txid, number in sorted(spout.given_back))
        plain_line(
            f"{len(spout.given_back)} stay where they are, for their transaction failed and none of them alone is at "
            f"fault: {names}"
        )


def _key(text: str) -> LetterKey:
    txid, _, number = text.partition(":")
    if not (txid.isdecimal() and number.isdecimal()):
        raise ConfigError(f"{text!r} is not a dead letter; the form is TXID:NUMBER, such as 7:0")
    return int(txid), int(number)
