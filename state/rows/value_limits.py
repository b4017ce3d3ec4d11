"""Values that some states refuse although Arrow can represent them: detected in the task, not only when writing.

A value that a database refuses would fail the commit phase, where the tuple that it came from is no longer known.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.model.errors import SchemaMismatch

_OUTSIDE: Final = "a time outside the years 1 to 9999"


@dataclass(frozen=True, slots=True)
class ValueLimits:
    """Values go through Python, whose times are in the years 1 to 9999; text may have to be free of zero bytes."""

    state: str
    zero_bytes: bool = True

    def check(self, rows: pa.Table, width: int) -> None:
        """Raise `SchemaMismatch`, with column and key, for a value that is refused. `width` columns are the key."""
        for name in rows.column_names:
            bad = self._refused(rows.column(name))
            if bad is None or not pc.any(bad).as_py():
                continue
            [number] = pc.indices_nonzero(bad).slice(0, 1).to_pylist()
            shown = ", ".join(f"{key}={rows.column(key)[number]}" for key in rows.column_names[:width])
            raise SchemaMismatch(
                f"state {self.state} can't store the value in column {name!r} of the row with {shown or 'no key'}: "
                + ("text with a zero byte" if pa.types.is_string(rows.column(name).type) else _OUTSIDE)
            )

    def _refused(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        if pa.types.is_string(column.type):
            return None if self.zero_bytes else pc.match_substring(column, "\0")
        if pa.types.is_temporal(column.type):
            first, last = (pa.scalar(bound, column.type) for bound in _bounds(column.type))
            return pc.or_(pc.less(column, first), pc.greater(column, last))
        return None


def _bounds(type_: pa.DataType) -> tuple[date, date]:
    if pa.types.is_date(type_):
        return date.min, date.max
    return datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
