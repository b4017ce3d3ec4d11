"""How partial aggregates are combined with stored values, for single values in Python.

The words of `COMBINES` (`sum`, `min`, `max`, `last`) mean the same for columns of Arrow (`opaque_columns.py`), and in
queries (`state.delta.tables.sql`). All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, Inexact
from typing import Any, Final

from transactional.core.ports import COMBINES, unknown_combine_error
from transactional.model.absent import ABSENT

_EXACT: Final = Context(prec=100, traps=[Inexact])
"""Columns have at most 38 digits; the thread's own context would round to 28."""


def combine_value(combine: str, stored: Any, partial: Any) -> Any:
    """Combine a partial aggregate with a stored value, which may be `ABSENT`; `combine` is one of `COMBINES`.

    NULL counts as nothing, except for `last`. Sums of integers and decimals are exact, whatever a column can hold.
    Raises `ProtocolError` for another word.
    """
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
