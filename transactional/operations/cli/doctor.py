"""`transactional doctor`: reports what is wrong between store, tables and source, and repairs what is safe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl, refuse_unused
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import load_topology, open_for_reading, open_store

if TYPE_CHECKING:
    from transactional.core.ports.examining import Diagnosis


def doctor(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")
    ],
    store: StoreUrl = DEFAULT_STORE,
    repair: Annotated[bool, typer.Option("--repair", help="Do what is safe; the topology must be stopped.")] = False,
    journal: Annotated[
        Path | None, typer.Option(help="The journal of the runs, from which a wiped store can be restored.")
    ] = None,
    accept_sent: Annotated[
        bool, typer.Option("--accept-sent", help="Let sinks send again what their targets have.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Findings and repairs as JSON.")] = False,
) -> None:
    """Compare a topology's store, tables and source, and report what is wrong and what would help.

    Changes nothing without --repair. The exit code is 1 if something is wrong and remains so.
    """
    if not repair:
        refuse_unused(context, ("journal",), "is for --repair, which restores a store from it: pass both")
        refuse_unused(context, ("accept_sent",), "is for --repair, which may take a topology back: pass both")
    # Delta and Kafka are imported here, so that other commands need not wait for them.
    from transactional.operations.doctor.examine import examine, unexamined
    from transactional.operations.doctor.repairs import repair as carry_out

    def say(line: str) -> None:
        if not as_json:
            print_line(line)

    topology, repaired = load_topology(target), list[str]()
    with ExitStack() as opened:
        coordinator_store = opened.enter_context(closing(open_store(store))) if repair else None
        reader = coordinator_store or opened.enter_context(closing(open_for_reading(store)))
        findings = examine(topology, reader, store)
        for line in _format_findings(findings, unexamined(topology)):
            say(line)
        if coordinator_store is not None and any(finding.can_repair for finding in findings):
            for text in carry_out(topology, coordinator_store, findings, journal, accepts_sent=accept_sent):
                repaired.append(text)
                say(f"repaired: {text}")
            findings = examine(topology, coordinator_store, store)
            for line in _format_findings(findings, []):
                say(f"still: {line}")
    problems = [finding for finding in findings if not finding.is_harmless]
    if as_json:
        report = {"is_well": not problems, "findings": list(map(asdict, findings)), "repaired": repaired}
        print_line(json.dumps({**report, "not_looked_at": unexamined(topology)}, indent=2))
    say(f"{topology.id}: {f'{len(problems)} things are wrong' if problems else 'nothing is wrong'}")
    if problems:
        raise typer.Exit(1)


def _format_findings(findings: Iterable[Diagnosis], not_looked_at: Iterable[str]) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.problem}: {finding.where}: {finding.what}"
        yield f"  {'with --repair' if finding.can_repair else 'to do'}: {finding.remedy}"
    for component in not_looked_at:
        yield f"note: the state of {component!r} is in no table that could be opened here; it was not checked"
