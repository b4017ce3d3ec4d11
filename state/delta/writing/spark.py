"""The Spark engine: a MERGE as a job, for tables that only Spark can write; and catalog names.

The job reads the Delta version that was judged, and writes files into the table's folder which are no part of the table
yet; the Delta commit is the driver's. Spark never commits to a state's table. It would take the newest version for the
one to start from, whatever was judged, and move its Delta commit behind others' that do not disturb it by its own
rules. A job has settings of its own, so each has a session of its own.
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet
from pyarrow.fs import FileInfo, FileSelector, FileType
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions

from state.delta.tables.sql import SPARK_SQL, MergeClauses, merge_clauses
from state.delta.tables.table import DeltaLocation, storage_of
from state.delta.tables.version import TableVersion
from state.delta.writing.commit import as_attempt, commit_files
from state.fence import WriteRefused
from state.rows.columns import StateColumns
from state.rows.expiring import Floors
from transactional.attempt import TransactionAttempt
from transactional.errors import ConfigError, OperatingError
from transactional.spark_internals import JvmFailed, is_classic
from transactional.spark_jobs import COMMIT, reason_of, work_in

_PLAIN_PATH = re.compile(r"[\w=./-]+", re.ASCII)
"""Other paths are written in a log in more than one way."""
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    # A sum is exact or an error, whatever the application's sessions do.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    # As delta-rs writes and reads times and dates, however old.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_FILE = "_file_of_row"
_CAME = "_came_with_the_batch"
_WAS_THERE = "_was_in_the_table"


def delta_session() -> SparkSession:
    """The SparkSession of this process, a new one if there is none.

    Raises `ConfigError` when it is a Spark Connect session, or Delta is not set up on it.
    """
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if not is_classic(session):
        raise ConfigError(
            "states need a classic Spark session, this one is Spark Connect: SparkSession.builder.master(…)"
        )
    if _EXTENSION not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigError(
            "Delta is not set up on the Spark session; use transactional.spark_session.spark_session(), or start yours "
            f"with spark.sql.extensions={_EXTENSION}, "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog and Delta's jar"
        )
    return session


class SparkMerge:
    """Writes a transaction to a table of the merge layout."""

    def write(
        self,
        table: TableVersion,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        floors: Floors,
    ) -> None:
        """What a MERGE would leave of the files that have a touched key, or rows of a dead attempt."""
        columns, files = table.columns, table.files()
        clauses = merge_clauses(columns, attempt.txid, combine, SPARK_SQL, floors, removes=True)
        with failing():
            session = job_session()
            source = session.createDataFrame(rows)
            judged = session.read.format("delta").option("versionAsOf", table.delta_version)
            every = judged.load(table.location.uri).select("*", functions.col("_metadata.file_name").alias(_FILE))
            if len(files) > 1:
                names = _touched(every, source, columns, attempt)
                files, every = named(files, names, table.location), every.where(functions.col(_FILE).isin(names))
            staging = _staged(table.location, _merged(every, source, clauses, columns))
            added = staging.added({})
        commit_files(table, [*staging.removed(files), *added], as_attempt(table, attempt.attempt_id, attempt))


class SparkSegments:
    """Writes a transaction to a table of the log layout."""

    def write(
        self,
        table: TableVersion,
        attempt: TransactionAttempt,
        rows: pa.Table,
        combine: Mapping[str, str],
        floors: Floors,
    ) -> None:
        """Replace the segment of the attempt's transaction. Raises `WriteRefused`."""
        columns = table.columns
        names, partition = rows.column_names, {columns.txid: str(attempt.txid)}
        with failing():
            session = job_session()
            types = session.read.format("delta").load(table.location.uri).schema
            source = session.createDataFrame(rows)
            cast = source.select(*(_column(name).cast(types[name].dataType).alias(name) for name in names))
            staging = _staged(table.location, cast)
            added = staging.added(partition)
        own = [file for file in table.files() if str(file["partition"][columns.txid]) == str(attempt.txid)]
        commit_files(table, [*staging.removed(own), *added], as_attempt(table, attempt.attempt_id, attempt))


def job_session() -> SparkSession:
    """A session with the settings of a job that writes a state's rows."""
    session = delta_session().newSession()
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    # Later transactions are being processed meanwhile, and wait for this one.
    work_in(COMMIT, session.sparkContext)
    return session


def _touched(rows: DataFrame, source: DataFrame, columns: StateColumns, attempt: TransactionAttempt) -> list[str]:
    """The files that have a key of the source, or a row of this transaction."""
    same = [rows[_quoted(name)].eqNullSafe(source[_quoted(name)]) for name in columns.key.names]
    met = rows.join(source, same, "left_semi") if same else rows
    own = rows.where(_column(columns.txid) == functions.lit(int(attempt.txid)))
    return [row[0] for row in met.select(_FILE).union(own.select(_FILE)).distinct().collect()]


def _staged(location: DeltaLocation, rows: DataFrame) -> Staging:
    staging = Staging(location)
    rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(staging.uri)
    return staging


@contextmanager
def failing() -> Iterator[None]:
    """What a job raises becomes `WriteRefused`."""
    try:
        yield
    except (PySparkException, JvmFailed) as error:  # the second: a task that wrote has failed, or the JVM has died
        raise WriteRefused(reason_of(error), is_conflict=False) from error
    except OSError as error:
        raise WriteRefused(f"what Spark has written can't be looked at: {error}", is_conflict=False) from error


def _merged(rows: DataFrame, source: DataFrame, clauses: MergeClauses, columns: StateColumns) -> DataFrame:
    """The rows as the clauses of a MERGE leave them."""
    types, names = rows.schema, columns.all.names
    there = rows.withColumn(_WAS_THERE, functions.lit(True)).alias("t")
    came = source.withColumn(_CAME, functions.lit(True)).alias("s")
    both = there.join(came, functions.expr(clauses.condition), "full_outer")
    both = both.where(f"s.{_CAME} OR NOT COALESCE({clauses.is_forgotten}, false)")
    if clauses.is_deleted is not None:
        both = both.where(f"s.{_CAME} IS NULL OR NOT COALESCE({clauses.is_deleted}, false)")
    return both.select(*(_met(name, clauses).cast(types[name].dataType).alias(name) for name in names))


def _met(name: str, clauses: MergeClauses) -> Column:
    """A column's value: of a row that is in both, came only, is rolled back, or stays."""
    column = SPARK_SQL.name(name)
    matched, rolled_back = (each.get(column, f"t.{column}") for each in (clauses.matched, clauses.rolled_back))
    new = clauses.not_matched.get(column, "NULL")
    return functions.expr(
        f"CASE WHEN s.{_CAME} AND t.{_WAS_THERE} THEN {matched} WHEN s.{_CAME} THEN {new} "
        f"WHEN {clauses.is_rolled_back} THEN {rolled_back} ELSE t.{column} END"
    )


def _quoted(name: str) -> str:
    return SPARK_SQL.name(name)


def _column(name: str) -> Column:
    return functions.col(SPARK_SQL.name(name))


def _sql_type(type_: str) -> str:
    return {"long": "bigint", "short": "smallint", "byte": "tinyint"}.get(type_, type_)


def resolve(
    location: DeltaLocation, columns: StateColumns, properties: Mapping[str, str], partition_by: str = ""
) -> DeltaLocation:
    """The location of a table in Spark's catalog, which is created when it is not there. Raises `ConfigError`."""
    session = delta_session()
    fields = ", ".join(f"`{column.name}` {_sql_type(column.type)}" for column in columns.all)
    options = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    partitions = f"PARTITIONED BY (`{partition_by}`)" if partition_by else ""
    try:
        session.sql(
            f"CREATE TABLE IF NOT EXISTS {location.name} ({fields}) USING delta {partitions} TBLPROPERTIES ({options})"
        )
        row: Row = session.sql(f"DESCRIBE DETAIL {location.name}").collect()[0]
    except PySparkException as error:
        raise ConfigError(f"table {location.name} is not to be had from Spark's catalog: {error}") from error
    if row["format"] != "delta":
        raise ConfigError(
            f"table {location.name} in Spark's catalog is a {row['format']} table; a state needs a Delta table"
        )
    if not row["location"]:
        raise OperatingError(f"Spark's catalog does not say where table {location.name} lies")
    return DeltaLocation(row["location"], location.storage_options)


# --- files that are no part of the table yet ---------------------------------------------------------------------


class Staging:
    """A folder of its own for what one job writes, in a table's folder. What nobody commits, vacuums delete."""

    def __init__(self, location: DeltaLocation) -> None:
        self._location, self._name, self._at_ms = location, f"staged-{uuid.uuid4()}", 0
        self._files = storage_of(location)

    @property
    def uri(self) -> str:
        """Where Spark is to write Parquet files."""
        return f"{self._location.uri}/{self._name}"

    def added(self, partition: Mapping[str, str | None]) -> list[AddAction]:
        """What was written, to be added to the table. On a disk the files are moved next to the others.

        Raises `OSError`.
        """
        every = self._files.get_file_info(FileSelector(self._name, recursive=True))
        written = [file for file in every if file.type == FileType.File and file.base_name.endswith(".parquet")]
        self._at_ms = max(file.mtime_ns for file in written) // 1_000_000  # Spark writes one also without rows
        found = [action for file in written if (action := self._action(file, partition)) is not None]
        if self._location.scheme == "file":
            shutil.rmtree(self.uri)
        return found

    def removed(self, files: Iterable[Mapping[str, Any]]) -> list[RemoveAction]:
        """The actions that remove files, which are given as a table's add actions. Raises `OperatingError`."""
        actions = []
        for file in files:
            path, partition = file["path"], file.get("partition") or {}
            if not _PLAIN_PATH.fullmatch(path):
                raise OperatingError(f"Delta table {self._location} has a file {path!r}, which the state has not named")
            values = {name: None if value is None else str(value) for name, value in partition.items()}
            actions.append(RemoveAction(path, True, self._at_ms, file["size_bytes"], values))
        return actions

    def _action(self, file: FileInfo, partition: Mapping[str, str | None]) -> AddAction | None:
        rows, path = parquet.read_metadata(self._files.open_input_file(file.path)).num_rows, file.path
        if not rows:
            return None
        if self._location.scheme == "file":
            # Where vacuums look for the table's files.
            home = Path(self._location.uri, *(f"{name}={value}" for name, value in partition.items()))
            home.mkdir(exist_ok=True)
            Path(self._location.uri, file.path).rename(home / file.base_name)
            path = (home / file.base_name).relative_to(self._location.uri).as_posix()
        at_ms = file.mtime_ns // 1_000_000
        return AddAction(path, file.size, partition, at_ms, True, json.dumps({"numRecords": rows}))


def named(files: Iterable[dict[str, Any]], names: Collection[str], location: DeltaLocation) -> list[dict[str, Any]]:
    """The files with one of these names. Raises `OperatingError` when there is none with one of them."""
    wanted = {unquote(name) for name in names}
    found = [file for file in files if unquote(file["path"]).rsplit("/", 1)[-1] in wanted]
    if len({unquote(file["path"]).rsplit("/", 1)[-1] for file in found}) != len(wanted):
        raise OperatingError(f"Delta table {location} has been read by Spark from files that it is not made of")
    return found
