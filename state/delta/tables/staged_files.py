"""Staged files as the driver sees them: it checks that they are there as tasks have reported them, or reads their rows.

In a table in the log layout staged files become a segment by a Delta commit of metadata only. For a table in the merge
layout the driver reads their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from state.delta.tables.staging import parse_staged_attempt
from state.delta.tables.table import DeltaLocation
from state.fence import TableWrite
from state.rows.columns import StateColumns
from transactional.core.ports.staged import StagedFile
from transactional.model.aggregates.sums import Step, reduce_rows
from transactional.model.arrow import arrow_schema
from transactional.model.attempt import TransactionAttempt
from transactional.model.errors import OperatingError, ProtocolError


def check_staged(location: DeltaLocation, attempt: TransactionAttempt, staged: Sequence[StagedFile]) -> None:
    """Raise `OperatingError` for a file that is not there as it was reported: the attempt has to be repeated.

    Raises `ProtocolError` for one that no task of this attempt can have reported.
    """
    for file in staged:
        if parse_staged_attempt(file.path) != attempt or not file.is_synced:
            fault = f"of another attempt than {attempt}" if file.is_synced else "not synced"
            raise ProtocolError(f"Delta table {location}: staged file {file.path} was reported, which is {fault}")
    check_there(location, staged)


def check_there(location: DeltaLocation, staged: Sequence[StagedFile]) -> None:
    """Raise `OperatingError` for a file that is not there as it was reported."""
    for file in staged:
        path = Path(location.uri, file.path)
        try:
            size = path.stat().st_size
        except OSError as error:
            task = f"a task on {file.host}" if file.host else "a task"
            raise OperatingError(
                f"Delta table {location}: {task} has reported {file.path}, and the driver does not find it: "
                f"{error.strerror}; every executor and the driver must see the same folder, also one that joins later"
            ) from None
        if size != file.size_bytes:
            raise OperatingError(
                f"Delta table {location}: {file.path} has {size} bytes, {file.size_bytes} were reported; the attempt "
                "has to be repeated"
            )


def read_staged(location: DeltaLocation, staged: Sequence[StagedFile], schema: pa.Schema) -> pa.Table:
    """Return key and value columns of all rows of some staged files. Raises `OperatingError`."""
    try:
        tables = [parquet.read_table(Path(location.uri, file.path)) for file in staged]
    except (OSError, pa.ArrowException) as error:
        raise OperatingError(
            f"Delta table {location}: a staged file can't be read: {location.describe_error(error)}"
        ) from None
    return pa.concat_tables([table.select(schema.names).cast(schema) for table in tables])


def read_by_driver(location: DeltaLocation, columns: StateColumns, write: TableWrite, state: str) -> TableWrite:
    """Return a write with the rows of its staged files among its own. Raises `OperatingError`, `SumOverflow`."""
    check_staged(location, write.attempt, write.staged)
    schema = arrow_schema(columns.written_columns)
    all_rows = pa.concat_tables([write.rows.select(schema.names), read_staged(location, write.staged, schema)])
    steps: list[Step] = [(name, write.combine[name]) for name in columns.values.names]
    steps += [(columns.deleted, "last")] if columns.deletes else []
    return replace(
        write, rows=reduce_rows(all_rows, columns.key.names, steps, columns.written_columns, state=state), staged=()
    )
