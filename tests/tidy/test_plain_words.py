"""Names are nouns of the field, docstrings whole sentences: what is neither becomes fewer, and no new file has any."""

from __future__ import annotations

import ast

import pytest

from tests.tidy.words import KINDS, counts_by_file, counts_of, read_ceilings


def test_no_file_has_more_than_its_ceiling() -> None:
    ceilings, none = read_ceilings(), (0,) * len(KINDS)
    grown = {
        f"{file}: {kind}": (now, ceiling)
        for file, counts in counts_by_file().items()
        for kind, now, ceiling in zip(KINDS, counts, ceilings.get(file, none), strict=True)
        if now > ceiling
    }
    assert grown == {}, "say what it is in a noun, or in a whole sentence; moved files: python -m tests.tidy.words"


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("found = 1", (1, 0, 0, 0)),
        ("def f(_wanted, data):\n    for at in data: self.kept = at", (3, 1, 0, 0)),
        ("matching_rows, last_seen = 1, 2", (0, 0, 0, 0)),
        ("try: pass\nexcept E as told: pass\nimport a as of", (2, 0, 0, 0)),
        ('def f():\n    """Those of the table that are written by it."""', (0, 0, 1, 0)),
        ('def f():\n    """It does."""', (0, 0, 1, 1)),
        ('def f():\n    """Return the rows that match a key of the table."""', (0, 0, 0, 0)),
        ('"""What a module is about."""\nRows = list\n"""By key."""', (0, 0, 1, 1)),
    ],
)
def test_what_is_counted(source: str, counts: tuple[int, ...]) -> None:
    assert counts_of(ast.parse(source)) == counts
