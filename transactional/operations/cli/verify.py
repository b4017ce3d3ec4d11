"""`transactional verify`: runs the independent checker on a topology's store, tables and source."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transactional.model.errors import ConfigError, OperatingError
from transactional.model.plumbing.redaction import redacted_reason
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import load_topology, open_for_reading

if TYPE_CHECKING:
    from transactional.operations.doctor.checked_tables import AnyTable
    from transactional.topology.topology import Topology
    from verifier.evidence.findings import Report
    from verifier.source import KafkaSource

_SQL = ("sqlite", "postgresql", "redis", "rediss")


def verify(
    target: Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A topology; or just its id.")],
    store: StoreUrl = DEFAULT_STORE,
    table: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMPONENT=PATH", help="Where a committer's table is, if not as declared; URL#TABLE in SQL."
        ),
    ] = None,
    counts: Annotated[
        list[str] | None,
        typer.Option(metavar="COMPONENT=COLUMN", help="A column that counts records; * if each record makes a row."),
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="The Kafka broker, if not as declared.")] = None,
    count_records: Annotated[
        bool, typer.Option("--count-records", help="Read the source again, and count the records of each range.")
    ] = False,
    windows: Annotated[
        bool,
        typer.Option(
            "--windows", help="Read and process the source again, and compute windows and keys that expire again."
        ),
    ] = False,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="Read the topics of sinks, and compare their records with the store.")
    ] = False,
    row_changes: Annotated[
        int, typer.Option(min=0, help="How many of the newest Delta commits per table are checked row by row.")
    ] = 1_000,
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON.")] = False,
) -> None:
    """Decide from store, tables and source alone whether each transaction is there exactly once, whole and in order.

    Uses none of the code that wrote them, changes nothing, and may be used while the topology is running. The exit code
    is 1 if something is wrong.
    """
    # Delta and Kafka are imported here, so that other commands need not wait for them.
    from verifier.checker import verify as verify_history
    from verifier.evidence.findings import CheckImpossible
    from verifier.source import KafkaSource

    topology_id, tables, sources, unknown = _tables_and_sources_of(target, store)
    tables = _with_paths(tables, _parse_pairs(table or (), "--table"))
    tables = _with_counts(tables, _parse_pairs(counts or (), "--counts"))
    if bootstrap is not None:
        sources = [replace(source, bootstrap_servers=bootstrap) for source in sources] or [KafkaSource(bootstrap)]
    sources = [replace(source, reads_records=count_records) for source in sources]
    if count_records and not sources:
        raise ConfigError("--count-records needs a Kafka source: pass a topology that has one, or --bootstrap")
    try:
        report = verify_history(store, topology_id, tables, sources, row_changes=row_changes)
    except CheckImpossible as error:
        raise ConfigError(f"{topology_id} can't be verified: {error}") from error
    except OSError as error:
        options = {
            name: option for checked in tables for name, option in getattr(checked, "storage_options", {}).items()
        }
        raise OperatingError(f"{topology_id} can't be verified: {redacted_reason(error, options)}") from None
    if windows:
        report = _with_windows(target, store, report)
    if sinks:
        report = _with_sinks(target, store, report)
    components = {checked.component for checked in tables}
    notes = [text for component, text in unknown.items() if component not in components]
    report = replace(report, notes=(*report.notes, *notes))
    print_line(json.dumps(_as_json(report), indent=2) if as_json else "\n".join(_format_report(topology_id, report)))
    if not report.is_exact:
        raise typer.Exit(1)


def _with_windows(target: str, store: str, report: Report) -> Report:
    """Return a report with the findings of computing the windows a second time."""
    from transactional.operations.doctor.recomputing import recompute_windows

    if ":" not in target:
        raise ConfigError("--windows runs the topology's code again: pass it as MODULE:TOPOLOGY")
    with closing(open_for_reading(store)) as reader:
        more = recompute_windows(load_topology(target), reader, store)
    return _merge_reports(report, more)


def _with_sinks(target: str, store: str, report: Report) -> Report:
    """Return a report with the findings in topics and tables of sinks, and a note for each sink that has neither."""
    from transactional.operations.doctor.sinks import appended_tables, checked_topics
    from verifier.evidence.findings import CheckImpossible
    from verifier.sinks.publications import check_sinks
    from verifier.sinks.tables import check_appended_tables

    if ":" not in target:
        raise ConfigError("--sinks needs the topology's sinks: pass it as MODULE:TOPOLOGY")
    topology = load_topology(target)
    topics, notes = checked_topics(topology)
    try:
        more = _merge_reports(
            check_sinks(store, topology.id, topics),
            check_appended_tables(store, topology.id, appended_tables(topology)),
        )
    except CheckImpossible as error:
        raise ConfigError(f"{topology.id} can't be verified: {error}") from error
    return _merge_reports(report, replace(more, notes=(*more.notes, *notes)))


def _merge_reports(report: Report, more: Report) -> Report:
    return replace(
        report,
        findings=(*report.findings, *more.findings),
        counts=dict(Counter(report.counts) + Counter(more.counts)),
        checked={**report.checked, **more.checked},
        notes=(*report.notes, *more.notes),
    )


def _former_spouts(topology: Topology, store: str) -> frozenset[str]:
    """Return the spouts of earlier runs that the store knows."""
    from transactional.runtime.engine.streams import stream_names

    with closing(open_for_reading(store)) as reader:
        return frozenset(stream_names(topology, reader).past_spouts)


def _tables_and_sources_of(target: str, store: str) -> tuple[str, list[AnyTable], list[KafkaSource], Mapping[str, str]]:
    if ":" not in target:
        return target, [], [], {}
    from transactional.operations.doctor.checked_tables import checked_sources, checked_tables

    topology = load_topology(target)
    tables, unknown = checked_tables(topology, partial(_former_spouts, topology, store))
    return topology.id, tables, checked_sources(topology), unknown


def _parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    pairs = {component: text for component, _, text in (pair.partition("=") for pair in texts)}
    for component, text in pairs.items():
        if not component or not text:
            raise ConfigError(f"{option} takes COMPONENT=…, such as {option} count=tables/counts")
    return pairs


def _with_paths(tables: list[AnyTable], paths: Mapping[str, str]) -> list[AnyTable]:
    declared = {table.component: table for table in tables}
    moved = {component: _table_at(component, path, declared.get(component)) for component, path in paths.items()}
    return list({**declared, **moved}.values())


def _table_at(component: str, path: str, declared: AnyTable | None) -> AnyTable:
    """Return a table at a path, or at `URL#TABLE`, checked as it is declared."""
    from verifier.checker import CheckedTable
    from verifier.sql_tables import CheckedSqlTable

    columns, counts, is_counted = None, None, None
    if declared is not None:
        columns, counts, is_counted = declared.columns, declared.counts, declared.is_counted
    if path.partition(":")[0].partition("+")[0] in _SQL:
        url, _, name = path.rpartition("#")
        if not url:
            raise ConfigError(f"--table {component}=… names a database; name the table in it as well: URL#TABLE")
        return CheckedSqlTable(component, url, name, columns, counts, is_counted=is_counted)
    options = declared.storage_options if isinstance(declared, CheckedTable) else {}
    return CheckedTable(component, path, options, columns, counts, is_counted=is_counted)


def _with_counts(tables: list[AnyTable], counts: Mapping[str, str]) -> list[AnyTable]:
    unknown = counts.keys() - {table.component for table in tables}
    if unknown:
        raise ConfigError(f"--counts names {min(unknown)!r}, which has no table to check; pass one with --table")
    return [replace(table, counts=counts.get(table.component, table.counts)) for table in tables]


def _format_report(topology_id: str, report: Report) -> Iterable[str]:
    yield from map(str, report.findings)
    listed = len(report.findings)
    total = sum(report.counts.values())
    if total > listed:
        yield f"and {total - listed} more"
    yield from (f"note: {text}" for text in report.notes)
    looked_at = ", ".join(f"{number} {kind}" for kind, number in report.checked.items())
    outcome = "nothing is wrong" if report.is_exact else f"{total} things are WRONG"
    yield f"{topology_id}: {outcome}; checked {looked_at}"


def _as_json(report: Report) -> dict[str, Any]:
    return {"is_exact": report.is_exact, **asdict(report)}
