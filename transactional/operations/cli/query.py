"""`transactional query` and `read`: answers queries, and prints tables, as of one committed transaction."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from transactional.model.errors import ConfigError
from transactional.model.schema import did_you_mean
from transactional.operations.cli.options import DEFAULT_STORE, StoreUrl
from transactional.operations.cli.output.lines import print_line
from transactional.operations.loading import load_topology

Target = Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A Topology, or a function that returns one.")]


def query(
    target: Target,
    name: Annotated[str, typer.Argument(help="The query's name.")],
    values: Annotated[list[str] | None, typer.Argument(help="A value for each field that the query declares.")] = None,
    store: StoreUrl = DEFAULT_STORE,
) -> None:
    """Query a topology from outside, whether or not it runs.

    Prints the answer as a line of JSON per tuple, and on stderr the transaction that it is as of: all states are read
    as they were when that one was committed.
    """
    from transactional.operations.queries.client import QueryClient
    from transactional.operations.queries.texts import parse_values

    topology = load_topology(target)
    with QueryClient(topology, store) as client:
        queries = client.queries
        if name not in queries:
            signatures = ", ".join(f"{declared.name}({declared.fields})" for declared in queries.values()) or "(none)"
            raise ConfigError(f"there is no query {name!r}; there are: {signatures}{did_you_mean(name, queries)}")
        answer = client.execute(name, *parse_values(queries[name], values or ()))
    _print_rows(answer.table.to_pylist())
    if not topology.has_queries_alone:
        _print_txid(answer.txid)


def read(
    target: Target,
    store: StoreUrl = DEFAULT_STORE,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="A committer's id; by default all. May be repeated.")
    ] = None,
    txid: Annotated[
        int | None, typer.Option("--as-of", help="A committed transaction; by default the newest one.")
    ] = None,
) -> None:
    """Print the tables of a topology as they all were after one committed transaction.

    Prints a line of JSON per row, with the table's name if there are several, and on stderr the transaction.
    """
    from transactional.operations.queries.as_of import as_of

    topology = load_topology(target)
    tables = [component.id for component in topology.committers]
    for name in table or ():
        if name not in tables:
            raise ConfigError(f"there is no table {name!r}; there are: {', '.join(tables)}{did_you_mean(name, tables)}")
    with as_of(topology, store, txid) as snapshot:
        chosen = table or tables
        for name in chosen:
            rows = snapshot[name].to_pylist()
            _print_rows(rows if len(chosen) == 1 else [{"table": name, "row": row} for row in rows])
        _print_txid(snapshot.txid)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from transactional.operations.queries.texts import to_json_value

    for row in rows:
        print_line(json.dumps(to_json_value(row), ensure_ascii=False))


def _print_txid(txid: int) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"as of transaction {txid}\n")
