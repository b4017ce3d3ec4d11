"""An independent checker: reads a store, tables in Delta and SQL, and a topic, and decides whether they are exact.

It uses no code of the framework, so that a mistake there can't hide itself.
"""

from verifier.checker import CheckedTable, verify
from verifier.evidence.findings import CheckImpossible, Finding, Kind, Report
from verifier.rows import RowColumns
from verifier.source import KafkaSource
from verifier.sql_tables import CheckedSqlTable

__all__ = [
    "CheckImpossible",
    "CheckedSqlTable",
    "CheckedTable",
    "Finding",
    "KafkaSource",
    "Kind",
    "Report",
    "RowColumns",
    "verify",
]
