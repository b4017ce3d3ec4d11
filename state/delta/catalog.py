"""Locates Delta tables by their name in Spark's catalog, and creates them there. Only this takes Spark: rows are read
and written at the location.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from state.delta.tables.table import DeltaLocation
from state.rows.columns import StateColumns
from transactional.model.errors import ConfigError, OperatingError
from transactional.runtime.spark.internals import is_classic

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def delta_session() -> SparkSession:
    """Return the SparkSession of this process, a new one if there is none.

    Raises `ConfigError` if it is a Spark Connect session, or if Delta is not set up on it.
    """
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    if not is_classic(session):
        raise ConfigError(
            "states need a classic Spark session, this one is Spark Connect: SparkSession.builder.master(…)"
        )
    if _EXTENSION not in str(session.conf.get("spark.sql.extensions", "")):
        raise ConfigError(
            "Delta is not set up on the Spark session; use transactional.runtime.spark.session.spark_session(), or "
            "start yours "
            f"with spark.sql.extensions={_EXTENSION}, "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog and Delta's jar"
        )
    return session


def _to_sql_type(type_: str) -> str:
    return {"long": "bigint", "short": "smallint", "byte": "tinyint"}.get(type_, type_)


def _quote_text(text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"'{escaped}'"


def locate_or_create(
    location: DeltaLocation, columns: StateColumns, properties: Mapping[str, str], partition_by: str = ""
) -> DeltaLocation:
    """Return the location of a table in Spark's catalog, which is created if it does not exist.

    Raises `ConfigError` if Spark refuses or the table is no Delta table, and `OperatingError` if it has no location.
    """
    session = delta_session()
    fields = ", ".join(f"`{column.name}` {_to_sql_type(column.type)}" for column in columns.all_columns)
    options = ", ".join(f"{_quote_text(name)} = {_quote_text(text)}" for name, text in properties.items())
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
