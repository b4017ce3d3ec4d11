"""How the files of a Delta table are named: its data, and the entries and checkpoints of its log."""

from __future__ import annotations

import re
from uuid import uuid4

LOG_FOLDER = "_delta_log"
ENTRY = re.compile(r"(\d{20})\.json")
"""An entry of the log, with its Delta version."""
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\..+)?\.parquet")
"""A checkpoint, or one part of it, with its Delta version."""
WHOLE_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
"""A checkpoint of one file: where there is one, it has everything."""
VERSIONED = re.compile(r"(\d{20})\..*")
"""Whatever belongs to one Delta version."""

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Spark has a dot before c000.
DATA_FILE = re.compile(rf"part-\d{{5,}}-{_UUID}([.-]c\d+)?(\.[a-z0-9]+)?\.parquet", re.IGNORECASE)
"""A file of rows, as Spark, delta-rs and `new_data_file` name it."""


def entry_name(version: int) -> str:
    """The name of a Delta version's entry in the log."""
    return f"{version:020}.json"


def new_data_file(compression: str = "snappy") -> str:
    """A name for a file of rows that no other one has."""
    return f"part-00000-{uuid4()}-c000.{compression}.parquet"
