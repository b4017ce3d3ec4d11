"""Rows as notebooks show them."""

from __future__ import annotations

from transactional.model.drawing.tables import Shown, in_html, in_text

WORDS = Shown("words: 2 rows", ["word", "count"], [["<b>&", 3], [None, 12]])


def test_every_text_is_escaped() -> None:
    assert in_html([WORDS]) == (
        "<table><caption>words: 2 rows</caption><thead><tr><th>word</th><th>count</th></tr></thead><tbody>"
        "<tr><td>&lt;b&gt;&amp;</td><td>3</td></tr><tr><td>–</td><td>12</td></tr></tbody></table>"  # noqa: RUF001
    )


def test_columns_of_text() -> None:
    assert in_text([WORDS, Shown("none: 0 rows", ["word"], [])]).splitlines() == [
        *("words: 2 rows", "word  count", "<b>&  3", "–     12"),  # noqa: RUF001
        *("none: 0 rows", "word"),
    ]


def test_a_table_without_columns() -> None:
    assert in_text([Shown("none: 0 rows", [], [])]) == "none: 0 rows\n"
