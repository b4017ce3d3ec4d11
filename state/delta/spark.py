"""The Spark engine: a MERGE as a job, for batches that are too large for the driver; and catalog names.

The job reads the Delta version that was judged, and writes files which are no part of the table yet. The Delta commit
is the driver's (`delta_staging`). A job has settings of its own, so each has a session of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions

from state.base import StateColumns, WriteRefused
from state.delta.staging import Staging, named
from state.delta.table import SPARK_SQL, DeltaLocation, MergeClauses, merge_clauses
from transactional.attempt import TransactionAttempt
from transactional.errors import ConfigError, OperatingError, ProtocolError
from transactional.spark_internals import JavaFailed, is_classic, running_session

if TYPE_CHECKING:
    import pyarrow as pa

    from state.delta.delta_rs import DeltaHandle

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


def is_delta_running() -> bool:
    """Whether a Spark session with Delta runs in this process. Starts none."""
    session = running_session()
    return session is not None and _EXTENSION in str(session.conf.get("spark.sql.extensions", ""))


class SparkMerge:
    """Merges into one table of a state, which is written through its handle."""

    def __init__(self, location: DeltaLocation, columns: StateColumns, handle: DeltaHandle) -> None:
        self._location, self._columns, self._handle = location, columns, handle

    def merge_table(self, attempt: TransactionAttempt, source: pa.Table, combine: Mapping[str, str]) -> None:
        """Apply rows, one per key. Raises `WriteRefused`."""
        session = self._session()
        self._merge(session, session.createDataFrame(source), attempt, combine)

    def merge_files(self, attempt: TransactionAttempt, files: Sequence[str], combine: Mapping[str, str]) -> None:
        """Apply rows of Parquet files, several per key. Raises `WriteRefused`."""
        if "last" in combine.values():
            raise ProtocolError(
                f"partial aggregates in files have no order, so they can't be combined with {dict(combine)}"
            )
        session = self._session()
        source = session.read.parquet(*files)
        aggregates = [
            getattr(functions, how)(_column(name)).cast(_type(self._columns, name)).alias(name)
            for name, how in combine.items()
        ]
        grouped = source.groupBy(*map(_column, self._columns.key.names)).agg(*aggregates)
        # Without key columns even no rows would make one.
        self._merge(
            session,
            grouped if self._columns.key else grouped.where(functions.lit(bool(source.head(1)))),
            attempt,
            combine,
        )

    def _session(self) -> SparkSession:
        session = delta_session().newSession()
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        # Later transactions are being processed meanwhile, and wait for this one.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", "commit")
        return session

    def _merge(
        self, session: SparkSession, source: DataFrame, attempt: TransactionAttempt, combine: Mapping[str, str]
    ) -> None:
        """What a MERGE would leave of the files that have a touched key, or rows of a dead attempt."""
        clauses, files = merge_clauses(self._columns, attempt.txid, combine, SPARK_SQL), self._handle.files()
        with _failing():
            rows = session.read.format("delta").option("versionAsOf", self._handle.delta_version)
            every = rows.load(self._location.uri).select("*", functions.col("_metadata.file_name").alias(_FILE))
            if len(files) > 1:
                names = self._touched(every, source, attempt)
                files, every = named(files, names, self._location), every.where(functions.col(_FILE).isin(names))
            staging = self._staged(_merged(every, source, clauses, self._columns))
            added = staging.added({})
        self._handle.replace_files(attempt, staging.removed(files), added)

    def _touched(self, rows: DataFrame, source: DataFrame, attempt: TransactionAttempt) -> list[str]:
        """The files that have a key of the source, or a row of this transaction."""
        same = [rows[_quoted(name)].eqNullSafe(source[_quoted(name)]) for name in self._columns.key.names]
        met = rows.join(source, same, "left_semi") if same else rows
        own = rows.where(_column(self._columns.txid) == functions.lit(int(attempt.txid)))
        return [row[0] for row in met.select(_FILE).union(own.select(_FILE)).distinct().collect()]

    def _staged(self, rows: DataFrame) -> Staging:
        staging = Staging(self._location)
        rows.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(staging.uri)
        return staging


class SparkLog(SparkMerge):
    """Writes to one table of a state that has the log layout: rows that are too many for the driver."""

    def _merge(
        self, session: SparkSession, source: DataFrame, attempt: TransactionAttempt, combine: Mapping[str, str]
    ) -> None:
        """Replace the rows of the attempt's transaction by the source's. Raises `WriteRefused`."""
        names, partition = (
            [*self._columns.key.names, *self._columns.values.names],
            {self._columns.txid: str(attempt.txid)},
        )
        with _failing():
            types = session.read.format("delta").load(self._location.uri).schema
            rows = source.select(*(_column(name).cast(types[name].dataType).alias(name) for name in names))
            staging = self._staged(rows)
            added = staging.added(partition)
        own = [file for file in self._handle.files() if str(file["partition"][self._columns.txid]) == str(attempt.txid)]
        self._handle.replace_files(attempt, staging.removed(own), added)


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (PySparkException, JavaFailed) as error:  # the second: a task that wrote has failed
        raise WriteRefused(str(error), is_conflict=False) from error
    except OSError as error:
        raise WriteRefused(f"what Spark has written can't be looked at: {error}", is_conflict=False) from error


def _merged(rows: DataFrame, source: DataFrame, clauses: MergeClauses, columns: StateColumns) -> DataFrame:
    """The rows as the clauses of a MERGE leave them."""
    types, names = rows.schema, columns.all.names
    there = rows.withColumn(_WAS_THERE, functions.lit(True)).alias("t")
    came = source.withColumn(_CAME, functions.lit(True)).alias("s")
    both = there.join(came, functions.expr(clauses.condition), "full_outer")
    both = both.where(f"s.{_CAME} OR NOT COALESCE({clauses.is_forgotten}, false)")
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


def _type(columns: StateColumns, name: str) -> str:
    return _sql_type(columns.values[name].type)


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
