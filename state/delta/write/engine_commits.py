"""The Delta commits of a state's table that delta-rs makes: each comes right after the version that was read and
checked, or it is refused.

Left to itself, delta-rs would rebase a Delta commit onto what others have written meanwhile; it takes a rewrite of the
same rows for no conflict. It does not compare the versions of an app id either: it would write a lower one. Commits
that change properties or columns, or rewrite rows by a query, go through here. `entry.py` has all commits that only
replace files, in the storages where it can write entries.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError

from state.delta.log.log import NO_POST_COMMIT_HOOKS, check_links
from state.delta.tables.table import add_feature, parse_features, write_refused_error
from state.delta.write.entry import app_versions_of, check_late_commit, check_read_version, may_be_late, note_of
from state.delta.write.loaded_table import LoadedTable
from state.fence import WriteRefused
from state.rows.expiring import ExpiryHorizons
from transactional.model.attempt import AttemptId, TransactionAttempt
from transactional.model.names import DELETES_FEATURE, EXPIRES_PROPERTY, OWNER_NOTE

# --- whose a Delta commit is ------------------------------------------------------------------------------------------


def single_try(transactions: list[Transaction], metadata: dict[str, str] | None = None) -> CommitProperties:
    """Return properties by which delta-rs refuses a Delta commit if its version exists, and tries no later one."""
    return CommitProperties(app_transactions=transactions, custom_metadata=metadata, max_commit_retries=0)


def as_attempt(
    table: LoadedTable, attempt_id: AttemptId, attempt: TransactionAttempt | None, horizons: ExpiryHorizons | None
) -> CommitProperties:
    """Return commit properties that make the attempt id the table's version, and record the attempt's horizons."""
    # `userMetadata` is what Spark's DESCRIBE HISTORY shows, and the only thing that Spark lets one write there.
    metadata = {"userMetadata": note_of(table.owner, attempt_id, attempt)}
    app_versions = app_versions_of(table.owner, attempt_id, horizons)
    return single_try([Transaction(app_id, version) for app_id, version in app_versions.items()], metadata)


def under_fence(table: LoadedTable, *more: Transaction) -> CommitProperties:
    """Return commit properties that repeat the table's version, so that the fence holds, with more app transactions."""
    version = table.version()
    return owned_properties(table, *([] if version is None else [Transaction(table.owner, version)]), *more)


def owned_properties(table: LoadedTable, *transactions: Transaction) -> CommitProperties:
    """Return commit properties that record the owner. An entry that ends with an app transaction is not torn."""
    note = {"userMetadata": json.dumps({OWNER_NOTE: table.owner})} if transactions else {}
    return single_try(list(transactions), note)


# --- by delta-rs ------------------------------------------------------------------------------------------------------


@contextmanager
def by_delta_rs(table: LoadedTable) -> Iterator[DeltaTable]:
    """Let delta-rs commit once and without retries, right after the version that was read and checked.

    Raises `WriteRefused`.
    """
    began_s = time.monotonic()
    try:
        engine = table.engine
        check_read_version(table)
        yield engine
        _follow_write(table, engine, began_s)
    except Exception as error:
        if not _is_of_libraries(error):
            raise
        if isinstance(error, CommitFailedError) or _has_moved(table):
            came = f"another writer's Delta commit came between: {table.location.describe_error(error)}"
            raise WriteRefused(came, is_conflict=True) from None
        check_links(table.location)
        raise write_refused_error(table.location, error) from None


def _has_moved(table: LoadedTable) -> bool:
    """True if there is a later version than the one that was read, which may be the cause of any error."""
    try:
        return not table.log.is_newest(table.read_version)
    except OSError:
        return False


def _is_of_libraries(error: Exception) -> bool:
    """True for an error of delta-rs or Arrow, as for a sum that does not fit.

    With one processor the errors of a query have no class of their own: some are a `ValueError`, those of a stream of
    rows an `Exception`.
    """
    if isinstance(error, DeltaError | OSError | pa.ArrowException) or type(error) is Exception:
        return True
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    return str(raised_in.f_globals.get("__name__")).startswith("deltalake.")


def _follow_write(table: LoadedTable, engine: DeltaTable, began_s: float) -> None:
    if engine.version() == table.read_version:
        return  # nothing had to be written
    table.read_version += 1
    if engine.version() != table.read_version:
        # `refresh` handles the versions after it.
        engine.load_as_version(table.read_version)
    table.move_to_engine()
    if may_be_late(table, table.read_version, began_s):
        check_late_commit(table, {table.owner: table.version()})


def commit_nothing(table: LoadedTable, properties: CommitProperties) -> None:
    """Commit no change, in a storage in which `entry.py` can't write entries. Raises `WriteRefused`."""
    with by_delta_rs(table) as engine:
        engine.create_write_transaction(
            [],
            mode="append",
            schema=engine.schema(),
            partition_by=engine.metadata().partition_columns,
            commit_properties=properties,
            post_commithook_properties=NO_POST_COMMIT_HOOKS,
        )
        # This call, unlike others, does not move the engine.
        engine.update_incremental()
        if engine.version() != table.read_version + 1:
            engine.load_as_version(table.read_version + 1)


def commit_properties(table: LoadedTable, values: Mapping[str, str], properties: CommitProperties) -> None:
    """Set properties of the table. Raises `WriteRefused`."""
    with by_delta_rs(table) as engine:
        engine.alter.set_table_properties(dict(values), raise_if_not_exists=False, commit_properties=properties)
        # A change of properties may make a checkpoint, too.
        table.move_to_engine()
        table.disk.settle_checkpoint()


def settle_columns(table: LoadedTable) -> None:
    """Add the columns that the state has gained, NULL in the rows that are there. Raises `WriteRefused`.

    A crash between the two Delta commits leaves columns that nobody writes to; the next start makes the second one.
    """
    if table.missing_columns.names:
        with by_delta_rs(table) as engine:
            fields = DeltaSchema.from_arrow(table.missing_columns).fields
            engine.alter.add_columns(fields, commit_properties=under_fence(table))
            # As a change of properties may make a checkpoint.
            table.move_to_engine()
            table.disk.settle_checkpoint()
    if table.columns.deletes:
        settle_feature(table, DELETES_FEATURE)


def settle_feature(table: LoadedTable, feature: str) -> None:
    """Record in the table a feature before its first use, since readers depend on it. Raises `WriteRefused`."""
    if feature not in parse_features(table.properties):
        commit_properties(table, add_feature(table.properties, feature), under_fence(table))


def settle_expiry(table: LoadedTable) -> None:
    """Note by which column rows expire, before the first horizon is recorded. Raises `WriteRefused`."""
    if (expires := table.columns.expires) is None or table.says_expiry:
        # Reading the properties means that delta-rs has to load the version.
        return
    if EXPIRES_PROPERTY not in table.properties:
        commit_properties(table, {EXPIRES_PROPERTY: expires}, under_fence(table))
    table.says_expiry = True


def commit_overwrite(table: LoadedTable, rows: Any, properties: CommitProperties, **more: Any) -> None:
    """Replace all rows, or those of a `predicate`, by a table or a reader of rows. Raises `WriteRefused`."""
    with by_delta_rs(table) as engine:
        write_deltalake(
            engine,
            rows,
            mode="overwrite",
            commit_properties=properties,
            post_commithook_properties=NO_POST_COMMIT_HOOKS,
            **more,
        )
