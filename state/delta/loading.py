"""Creating and loading Delta tables by delta-rs, and what its errors are to the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import ProtocolVersions

from state.base import StateColumns, WriteRefused
from state.delta.table import DEFAULT_PROPERTIES, DeltaLocation, check_properties, delta_schema
from transactional.errors import OperatingError, SchemaMismatch


def create_table(
    location: DeltaLocation,
    columns: StateColumns,
    properties: Mapping[str, str],
    partition_by: Sequence[str] = (),
) -> None:
    """Create the table of a state, unless there is one. Raises `SchemaMismatch` when it can't be created."""
    configuration = {**DEFAULT_PROPERTIES, **properties}
    check_properties(configuration, str(location))
    try:
        DeltaTable.create(
            location.uri,
            delta_schema(columns),
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration=configuration,
            storage_options=dict(location.storage_options),
            raise_if_key_not_exists=False,
        )
    except (DeltaError, OSError) as error:
        # Another creator may have been first; then there is a table now.
        if not is_there(location):
            raise SchemaMismatch(f"Delta table {location} can't be created: {location.reason(error)}") from None


def is_there(location: DeltaLocation) -> bool:
    """Whether there is a table. Raises `OperatingError` when its storage does not answer."""
    try:
        return DeltaTable.is_deltatable(location.uri, dict(location.storage_options))
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be looked for: {location.reason(error)}") from None


def load_table(location: DeltaLocation) -> DeltaTable:
    """The newest snapshot of a table. Raises `OperatingError` when it can't be read."""
    try:
        return DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except (DeltaError, OSError) as error:
        raise OperatingError(f"Delta table {location} can't be opened: {location.reason(error)}") from None


def features_of(protocol: ProtocolVersions) -> frozenset[str]:
    """The table features that a protocol names, of readers and of writers."""
    return frozenset([*(protocol.reader_features or []), *(protocol.writer_features or [])])


def refused(location: DeltaLocation, error: Exception) -> WriteRefused:
    """What a write that delta-rs has not carried out is to the rest. Not raised from it: it may tell secrets."""
    return WriteRefused(location.reason(error), is_conflict=isinstance(error, CommitFailedError))


def unreadable(location: DeltaLocation, error: Exception) -> OperatingError:
    """What a read that has failed is to the rest."""
    return OperatingError(f"Delta table {location} can't be read: {location.reason(error)}")
