"""The Spark engine: one MERGE per transaction, for batches that are too large for the driver; and catalog names.

Spark writes the app transaction from session confs, and silently skips a statement whose version is not higher than the
table's. Confs that are left behind would swallow some later statement, so each MERGE has a session of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, functions

from state.base import StateColumns, WriteRefused
from state.delta_table import SPARK_SQL, DeltaLocation, MergeClauses, commit_metadata, merge_clauses
from transactional.attempt import TransactionAttempt
from transactional.errors import ConfigError, OperatingError, ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def delta_session() -> SparkSession:
    """The SparkSession of this process, a new one if there is none.

    Raises `ConfigError` when it is a Spark Connect session, or Delta is not set up on it.
    """
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if not hasattr(session, "_jsparkSession"):
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
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    if session is None or not hasattr(session, "_jsparkSession") or session.sparkContext._jsc is None:
        return False
    return _EXTENSION in str(session.conf.get("spark.sql.extensions", ""))


class SparkMerge:
    """Merges into one table of a state."""

    def __init__(self, location: DeltaLocation, owner: str, columns: StateColumns) -> None:
        self._uri = location.uri
        self._target = f"delta.`{location.uri.replace('`', '``')}`"
        self._owner, self._columns = owner, columns

    def merge_table(self, attempt: TransactionAttempt, source: pa.Table, combine: Mapping[str, str]) -> None:
        """Apply rows, one per key. Raises `WriteRefused`."""
        session = self._session(attempt)
        self._merge(session, session.createDataFrame(source), attempt, combine)

    def merge_files(self, attempt: TransactionAttempt, files: Sequence[str], combine: Mapping[str, str]) -> None:
        """Apply rows of Parquet files, several per key. Raises `WriteRefused`."""
        if "last" in combine.values():
            raise ProtocolError(
                f"partial aggregates in files have no order, so they can't be combined with {dict(combine)}"
            )
        session = self._session(attempt)
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

    def _session(self, attempt: TransactionAttempt) -> SparkSession:
        session = delta_session().newSession()
        metadata = json.dumps(commit_metadata(self._owner, attempt, attempt.attempt_id))
        session.conf.set("spark.databricks.delta.write.txnAppId", self._owner)
        session.conf.set("spark.databricks.delta.write.txnVersion", str(attempt.attempt_id))
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", metadata)
        session.conf.set("spark.sql.session.timeZone", "UTC")
        # A sum is exact or an error, whatever the application's sessions do.
        session.conf.set("spark.sql.ansi.enabled", "true")
        session.conf.set("spark.sql.storeAssignmentPolicy", "ANSI")
        session.conf.set("spark.sql.decimalOperations.allowPrecisionLoss", "false")
        # Later transactions are being processed meanwhile, and wait for this one.
        session.sparkContext.setLocalProperty("spark.scheduler.pool", "commit")
        return session

    def _merge(
        self, session: SparkSession, source: DataFrame, attempt: TransactionAttempt, combine: Mapping[str, str]
    ) -> None:
        source.createOrReplaceTempView("state_source")
        clauses = merge_clauses(self._columns, attempt.txid, combine, SPARK_SQL)
        try:
            # An empty result: Spark took the transaction for an old one and did nothing. The version will tell.
            session.sql(_statement(self._target, clauses)).collect()
        except (PySparkException, Py4JJavaError) as error:  # the second: a task that wrote has failed
            is_conflict = isinstance(error, DeltaConcurrentModificationException)
            raise WriteRefused(str(error), is_conflict=is_conflict) from error


class SparkLog(SparkMerge):
    """Writes to one table of a state that has the log layout: rows that are too many for the driver."""

    def _merge(
        self, session: SparkSession, source: DataFrame, attempt: TransactionAttempt, combine: Mapping[str, str]
    ) -> None:
        """Replace the rows of the attempt's transaction by the source's. Raises `WriteRefused`."""
        txid = self._columns.txid
        names = [*self._columns.key.names, *self._columns.values.names]
        rows = source.select(*map(_column, names)).withColumn(txid, functions.lit(attempt.txid).cast("bigint"))
        try:
            rows.write.format("delta").mode("overwrite").option(
                "replaceWhere", f"{SPARK_SQL.name(txid)} = {attempt.txid}"
            ).save(self._uri)
        except (PySparkException, Py4JJavaError) as error:  # the second: a task that wrote has failed
            is_conflict = isinstance(error, DeltaConcurrentModificationException)
            raise WriteRefused(str(error), is_conflict=is_conflict) from error


def _statement(target: str, clauses: MergeClauses) -> str:
    columns, values = ", ".join(clauses.not_matched), ", ".join(clauses.not_matched.values())
    return (
        f"MERGE INTO {target} t USING state_source s ON {clauses.condition}\n"
        f"WHEN MATCHED THEN UPDATE SET {_assignments(clauses.matched)}\n"
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({values})\n"
        f"WHEN NOT MATCHED BY SOURCE AND {clauses.is_rolled_back} THEN UPDATE SET {_assignments(clauses.rolled_back)}\n"
        f"WHEN NOT MATCHED BY SOURCE AND {clauses.is_forgotten} THEN DELETE"
    )


def _assignments(updates: Mapping[str, str]) -> str:
    return ", ".join(f"t.{column} = {value}" for column, value in updates.items())


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
