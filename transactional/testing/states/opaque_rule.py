"""The opaque rule as one table: a row before a transaction, what the transaction does to its key, the row afterwards.

A row is value, previous value, txid, previous txid. The transaction is number 5; 99 is what a dead attempt of it wrote.
"""

from __future__ import annotations

from typing import Any

TXID = 5
There = tuple[int | None, int | None, int, int | None]
Row = There | None
"""None: there is no row."""

DOES = (None, ("sum", 3), ("sum", None), ("last", 3), ("last", None), ("min", 3), ("max", 3), ("max", None))
"""The changes of a transaction to a key: none, or a partial value with the way in which it is combined."""

ABSENT = "absent"

_NEW = [(3, None, 5, None), (None, None, 5, None)]
_OF_10 = [
    (13, 10, 5, 4),
    (10, 10, 5, 4),
    (3, 10, 5, 4),
    (None, 10, 5, 4),
    (3, 10, 5, 4),
    (10, 10, 5, 4),
    (10, 10, 5, 4),
]
_OF_NULL = [(3, None, 5, 4), (None, None, 5, 4)]

RULE: dict[str, tuple[Row, Any, list[Row]]] = {
    # before: its row, the value that a bolt and a reader see, and the row after each of DOES
    "no row": (None, ABSENT, [None, *_NEW, *_NEW, _NEW[0], *_NEW]),
    "an older one": ((10, 7, 4, 2), 10, [(10, 7, 4, 2), *_OF_10]),
    "one that was new": ((10, None, 4, None), 10, [(10, None, 4, None), *_OF_10]),
    "one that was rolled back": ((10, 10, 4, 4), 10, [(10, 10, 4, 4), *_OF_10]),
    "an older NULL": ((None, 7, 4, 2), None, [(None, 7, 4, 2), *_OF_NULL, *_OF_NULL, _OF_NULL[0], *_OF_NULL]),
    "a dead attempt's": ((99, 10, 5, 4), 10, [(10, 10, 4, 4), *_OF_10]),
    "a dead attempt's new one": ((99, None, 5, None), ABSENT, [None, *_NEW, *_NEW, _NEW[0], *_NEW]),
    "a dead attempt's over NULL": (
        *((99, None, 5, 4), None),
        [(None, None, 4, 4), *_OF_NULL, *_OF_NULL, _OF_NULL[0], *_OF_NULL],
    ),
}

# --- where keys may be deleted --------------------------------------------------------------------------------------

Marked = tuple[int | None, int | None, int, int | None, bool]
"""A row, and whether it is a tombstone: its transaction has deleted the key."""

DOES_OR_DELETES = (*DOES, ("delete", None))

_TOMBSTONE_OF_10, _TOMBSTONE_OF_NULL = (None, 10, 5, 4, True), (None, None, 5, 4, True)
DELETED: dict[str, Marked | None] = {
    # the row after the transaction has deleted the key, by the row before
    "no row": None,
    "an older one": _TOMBSTONE_OF_10,
    "one that was new": _TOMBSTONE_OF_10,
    "one that was rolled back": _TOMBSTONE_OF_10,
    "an older NULL": _TOMBSTONE_OF_NULL,
    "a dead attempt's": _TOMBSTONE_OF_10,
    "a dead attempt's new one": None,
    "a dead attempt's over NULL": _TOMBSTONE_OF_NULL,
}


def _alive(row: Row) -> Marked | None:
    return None if row is None else (*row, False)


TOMBSTONES: dict[str, tuple[Marked, Any, list[Marked | None]]] = {
    # as RULE: of an earlier transaction it is as no row, of a dead attempt it goes back to what was there
    "an older tombstone": ((None, 10, 4, 2, True), ABSENT, [*map(_alive, RULE["no row"][2]), None]),
    "a dead attempt's tombstone": (
        *(_TOMBSTONE_OF_10, 10),
        [*map(_alive, RULE["a dead attempt's"][2]), _TOMBSTONE_OF_10],
    ),
    "a dead attempt's tombstone of NULL": (
        *(_TOMBSTONE_OF_NULL, None),
        [*map(_alive, RULE["a dead attempt's over NULL"][2]), _TOMBSTONE_OF_NULL],
    ),
}

RULE_WITH_DELETES: dict[str, tuple[Marked | None, Any, list[Marked | None]]] = {
    **{
        key: (_alive(row), shown_value, [*map(_alive, rows), DELETED[key]])
        for key, (row, shown_value, rows) in RULE.items()
    },
    **TOMBSTONES,
}
