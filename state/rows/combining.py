"""How partial aggregates are combined with stored values: row by row in Arrow, and for single values in Python.

The words of `COMBINES` (`sum`, `min`, `max`, `last`) mean the same in both. `state.delta.tables.sql` states them a
third time, for queries. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, Inexact
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from transactional.core.ports import COMBINES, unknown_combine_error
from transactional.model.absent import ABSENT

_EXACT: Final = Context(prec=100, traps=[Inexact])
"""Columns have at most 38 digits; the thread's own context would round to 28."""


def combine_columns(combine: str, stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    """Combine, row by row, partial aggregates with the stored values, both of one type; `combine` is one of `COMBINES`.

    NULL counts as nothing, except for `last`, where it is a value like any other. NaN is greater than every number.
    Raises `ArrowInvalid` where a sum of integers or decimals does not fit the type, `ProtocolError` for another word.
    """
    match combine:
        case "last":
            return partial
        case "sum":
            sums = _add(stored, partial)
            return pc.coalesce(sums, partial, stored) if sums.null_count else sums
        case "min" | "max":
            is_better = (pc.less if combine == "min" else pc.greater)(partial, stored)
            if pa.types.is_floating(partial.type):
                # For Arrow NaN is neither less nor greater.
                is_better = pc.or_(is_better, pc.is_nan(stored if combine == "min" else partial))
            # NULL where one of them is: then the other one counts.
            return pc.coalesce(pc.if_else(is_better, partial, stored), partial, stored)
    raise unknown_combine_error(combine)


def _add(stored: pa.ChunkedArray, partial: pa.ChunkedArray) -> pa.ChunkedArray:
    type_ = partial.type
    if pa.types.is_decimal(type_) and type_.precision == pa.decimal128(38).precision:
        wide = pa.decimal256(type_.precision + 1, type_.scale)
        stored, partial = stored.cast(wide), partial.cast(wide)
    return pc.add_checked(stored, partial).cast(type_)


def combine_value(combine: str, stored: Any, partial: Any) -> Any:
    """Combine as `combine_columns` a single value, which may be `ABSENT`. Sums of integers and decimals are exact,
    whatever a column can hold."""
    if combine not in COMBINES:
        raise unknown_combine_error(combine)
    if combine == "last" or stored is ABSENT or stored is None:
        return partial
    if partial is None:
        return stored
    if combine == "sum":
        return _EXACT.add(stored, partial) if isinstance(stored, Decimal) else stored + partial
    # NaN, the one value that is not itself, is greater than all others: so the order of partial values does not matter.
    is_greater = partial != partial or (stored == stored and partial > stored)
    return partial if is_greater is (combine == "max") else stored


def combine_row(combine: Sequence[str], stored: Any, partials: Sequence[Any]) -> tuple[Any, ...]:
    """Combine as `combine_value` the values of a row, with a word for each. `stored` is a tuple, or `ABSENT`."""
    values = (ABSENT,) * len(partials) if stored is ABSENT else stored
    return tuple(map(combine_value, combine, values, partials))
