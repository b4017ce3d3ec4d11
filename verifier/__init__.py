"""An independent checker: reads a store, Delta tables and a topic, and decides whether what they hold is exact.

It uses no code of the framework, so that a mistake there can't hide itself.
"""

from verifier.checker import CheckedTable, verify
from verifier.findings import CheckImpossible, Finding, Kind, Report
from verifier.rows import RowColumns
from verifier.source import KafkaSource

__all__ = ["CheckImpossible", "CheckedTable", "Finding", "KafkaSource", "Kind", "Report", "RowColumns", "verify"]
