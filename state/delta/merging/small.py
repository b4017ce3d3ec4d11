"""A table that is small: it is one file, which is written as a whole, and its rows are kept in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from state.delta.merging.change import Change
from state.delta.tables.data_files import DataFile

REWRITTEN_ROWS_MAX: Final = 50_000
"""With more rows than this, those that come included, a table is rewritten file by file."""
REWRITTEN_BYTES_MAX: Final = 4 * 1024 * 1024
"""And with larger files."""


class SmallTable:
    """The rows of a table that is small, kept from one transaction to the next, by Delta version."""

    def __init__(self) -> None:
        self._known: tuple[int, pa.Table] | None = None

    def after(
        self, change: Change, version: int, files: Sequence[DataFile], load: Callable[[int], pa.Table | None]
    ) -> pa.Table | None:
        """All rows after a transaction, as `rewritten`; None for a table that is not small.

        `load` reads all columns of the rows of Delta version `version`, which is made of `files`, unless there are more
        than so many.
        """
        rows_max, size_bytes = REWRITTEN_ROWS_MAX - change.rows.num_rows, sum(file.size_bytes for file in files)
        if max(change.rows.nbytes, size_bytes) > REWRITTEN_BYTES_MAX:
            return None
        rows = self.rows(version)
        if rows is None:
            rows = load(rows_max)
        return None if rows is None or rows.num_rows > rows_max else change.applied(rows)

    def rows(self, version: int) -> pa.Table | None:
        """All columns of the rows of a Delta version, None: not known."""
        return self._known[1] if self._known is not None and self._known[0] == version else None

    def keep(self, version: int, rows: pa.Table) -> None:
        """Note what a Delta version is made of."""
        self._known = (version, rows)
