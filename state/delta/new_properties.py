"""The Delta table properties that a new state table may have.

Delta takes any property when a table is created. Some add a feature to the table's protocol, and the state then refuses
its own table; with others Spark or delta-rs fails at the next read or write. So they are checked against a list, before
anything is created. Tables that exist are checked by `check_properties`: their properties may be other people's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from state.delta.log.files import parse_interval_s
from state.delta.tables.table import DEFAULT_PROPERTIES, check_properties
from transactional.model.errors import ConfigError
from transactional.model.names import LOG_COMMITS_PROPERTY

_LOG_RETENTION: Final = "delta.logRetentionDuration"
_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_INTERVALS: Final = (_LOG_RETENTION, _FILE_RETENTION)
_SWITCH: Final = ("true|false", "true or false")
_SIZE: Final = (r"[1-9]\d*\s*([kmgt]?b|[kmgt])?", "a size, such as 128mb")
_ALLOWED: Final[Mapping[str, tuple[str, str]]] = {
    "delta.checkpointInterval": (r"\d+", "a number, 1 or more"),
    "delta.checkpoint.writeStatsAsJson": _SWITCH,
    "delta.checkpoint.writeStatsAsStruct": _SWITCH,
    "delta.checkpointPolicy": ("classic", "classic"),
    "delta.columnMapping.mode": ("none", "none"),
    "delta.dataSkippingNumIndexedCols": (r"-1|\d+", "a number, or -1 for all columns"),
    "delta.dataSkippingStatsColumns": (r".*", "names of columns"),
    "delta.enableExpiredLogCleanup": _SWITCH,
    "delta.isolationLevel": ("serializable|writeserializable", "Serializable or WriteSerializable"),
    "delta.targetFileSize": _SIZE,
    "delta.tuneFileSizesForRewrites": _SWITCH,
    "delta.autoOptimize": _SWITCH,
    "delta.autoOptimize.autoCompact": ("true|false|auto|legacy", "true, false or auto"),
    "delta.autoOptimize.optimizeWrite": _SWITCH,
    "delta.randomizeFilePrefixes": _SWITCH,
    "delta.randomPrefixLength": (r"[1-9]\d*", "a number, 1 or more"),
}
"""The valid texts of each property, as a pattern and in words. Intervals are in `_INTERVALS`."""
_SWITCHES: Final = re.compile(r"delta\.(?!constraints\.|feature\.)(appendOnly|enable\w+|(\w+\.)+enabled)", re.ASCII)
"""Delta's other switches. A state's table may name them as long as they are off."""
_BY_LOWER_NAME: Final = {name.lower(): name for name in (*_ALLOWED, *_INTERVALS, LOG_COMMITS_PROPERTY)}


def check_new_properties(properties: Mapping[str, Any], table: str) -> None:
    """Raise `ConfigError` for properties of a new table that would make it one that no state, or no Spark, can use."""
    for name, text in properties.items():
        if not isinstance(text, str):
            raise ConfigError(
                f"state {table}: the value of the property {name} is {text!r}, and Delta's are texts: write "
                f"{str(text).lower()!r}"
            )
    check_properties(properties, table)
    for name, text in properties.items():
        if name.lower().startswith(("delta.", "transactional.")):
            _check_property(name, text, table)
    _check_retention({**DEFAULT_PROPERTIES, **properties}, table)


def _check_property(name: str, text: str, table: str) -> None:
    proper_name = _BY_LOWER_NAME.get(name.lower())
    if proper_name is None:
        if text.lower() == "false" and _SWITCHES.fullmatch(name):
            return
        raise ConfigError(
            f"state {table} can't have the property {name} = {text!r}: not all that read and write a state's table "
            f"know it, or it is the state's own; take it away. A state can have {', '.join(_BY_LOWER_NAME.values())}, "
            "Delta's other switches as 'false', and names that begin neither with delta. nor with transactional."
        )
    if name != proper_name:
        raise ConfigError(f"state {table}: the property {name} is written {proper_name}")
    pattern, words = _ALLOWED.get(proper_name, ("", ""))
    if proper_name in _INTERVALS and parse_interval_s(text) is None:
        pattern, words = r"(?!)", "an interval, such as 'interval 2 days'"
    if pattern and not re.fullmatch(pattern, text, re.IGNORECASE):
        raise ConfigError(f"state {table}: the property {name} is {text!r}; it has to be {words}")


def _check_retention(properties: Mapping[str, str], table: str) -> None:
    log, files = properties[_LOG_RETENTION], properties[_FILE_RETENTION]
    if (parse_interval_s(log) or 0) < (parse_interval_s(files) or 0):
        raise ConfigError(
            f"state {table} would keep its log for {log!r} and removed files for {files!r}, and Spark reads no table "
            f"whose log is kept for less time than removed files: set {_LOG_RETENTION} to {files!r} or more, or "
            f"{_FILE_RETENTION} to {log!r} or less"
        )
