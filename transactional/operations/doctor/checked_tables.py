"""A topology as the independent checker sees it: the tables of its committers, and the sources that it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from transactional.core.ports.examining import TableAddress
from transactional.core.ports.expiry import Time
from transactional.model.aggregates import Count
from transactional.model.groupings import GroupingKind
from transactional.operations.doctor.counted_records import CountedRecords
from transactional.topology.topology import Component, Topology
from verifier.checker import CheckedTable
from verifier.horizons import ExpiryRule
from verifier.rows import RowColumns
from verifier.source import KafkaSource
from verifier.sql_tables import CheckedSqlTable

AnyTable: TypeAlias = CheckedTable | CheckedSqlTable
_DATABASES = ("sql", "redis")
_COUNTED_ONCE = (GroupingKind.FIELDS, GroupingKind.GLOBAL, GroupingKind.PARTIAL_KEY)


def checked_tables(
    topology: Topology, read_former_spouts: Callable[[], frozenset[str]] = frozenset
) -> tuple[list[AnyTable], dict[str, str]]:
    """Return the tables of a topology's committers, and why the others' can't be checked, by component.

    `read_former_spouts` is passed to `CountedRecords`.
    """
    tables: list[AnyTable] = []
    unknown: dict[str, str] = {}
    for component in topology.committers:
        address = None if component.state is None else component.state.parts.examination.address()
        counts, is_counted = (
            _count_column(topology, component),
            CountedRecords(topology, component.id, read_former_spouts),
        )
        if address is None or (address.uri is None and address.format in _DATABASES):
            unknown[component.id] = f"the table of {component.id!r} can't be read from here: it was not checked"
        elif address.uri is None:
            unknown[component.id] = (
                f"the table of {component.id!r} is in Spark's catalog; pass its path with "
                f"--table {component.id}=PATH, to have it checked"
            )
        elif address.format in _DATABASES:
            columns, expires = _columns_of(address), _expires_of(component.id, address)
            tables.append(
                CheckedSqlTable(component.id, address.uri, address.table, columns, counts, expires, is_counted)
            )
        else:
            columns, expires = _columns_of(address), _expires_of(component.id, address)
            tables.append(
                CheckedTable(component.id, address.uri, address.options, columns, counts, expires, is_counted)
            )
    return tables, unknown


def checked_sources(topology: Topology) -> list[KafkaSource]:
    """Return the Kafka clusters that a topology reads; none for another source."""
    return [
        KafkaSource(
            address.uri, address.options, address.timeout_ms / 1000, prefix=prefix, leaves_out=address.skips_records
        )
        for prefix, address in topology.spout.parts.examination.addresses().items()
        if address.format == "kafka"
    ]


def _columns_of(address: TableAddress) -> RowColumns:
    columns = (address.key, address.values, address.previous, address.txid, address.prev_txid)
    return RowColumns(*columns, address.deleted)


def _expires_of(component: str, address: TableAddress) -> ExpiryRule | None:
    expiry = address.expiry
    return None if expiry is None else ExpiryRule(expiry.column, expiry.after_us, expiry.by is Time.EVENT, component)


def _count_column(topology: Topology, component: Component) -> str | None:
    """Return the column that counts the spout's tuples, or None if none counts all of them and nothing else."""
    if component.update is None or len(component.inputs) != 1:
        return None
    [grouping] = component.inputs
    is_whole = grouping.kind.is_shuffle or grouping.kind in _COUNTED_ONCE
    if grouping.source != topology.spout_id or not is_whole:
        return None
    return next((name for name, aggregate in component.update.aggregates.items() if isinstance(aggregate, Count)), None)
