"""Rows as notebooks show them."""

from __future__ import annotations

from transactional.model.drawing.notebook_tables import TitledRows, tables_to_html, tables_to_text

WORDS = TitledRows("words: 2 rows", ["word", "count"], [["<b>&", 3], [None, 12]])


def test_every_text_is_escaped() -> None:
    assert tables_to_html([WORDS]) == (
        "<table><caption>words: 2 rows</caption><thead><tr><th>word</th><th>count</th></tr></thead><tbody>"
        "<tr><td>&lt;b&gt;&amp;</td><td>3</td></tr><tr><td>–</td><td>12</td></tr></tbody></table>"  # noqa: RUF001
    )


def test_columns_of_text() -> None:
    assert tables_to_text([WORDS, TitledRows("none: 0 rows", ["word"], [])]).splitlines() == [
        *("words: 2 rows", "word  count", "<b>&  3", "–     12"),  # noqa: RUF001
        *("none: 0 rows", "word"),
    ]


def test_a_table_without_columns() -> None:
    assert tables_to_text([TitledRows("none: 0 rows", [], [])]) == "none: 0 rows\n"
