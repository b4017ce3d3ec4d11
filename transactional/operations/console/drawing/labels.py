"""Lays out labels in rows so that none covers another: each is in the first row that has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from transactional.model.drawing import svg

CHARACTER: Final = 6.2
"""The mean width of a label's character, in units of the picture."""
ROW: Final = 15.0
ROWS_MAX: Final = 3
_APART: Final = 8.0


@dataclass(frozen=True, slots=True)
class Label:
    """A short text that begins at `left_x`; `class_` is its style."""

    words: str
    left_x: float
    class_: str

    @property
    def right_x(self) -> float:
        """The x coordinate of the label's right end."""
        return self.left_x + svg.text_width(self.words, CHARACTER)


def label_next_to(words: str, line_x: float, class_: str, width: float) -> Label:
    """Return a label to the right of a vertical line, or to its left if it would reach beyond the picture's width."""
    to_the_right = Label(words, line_x + 5, class_)
    if to_the_right.right_x <= width:
        return to_the_right
    return Label(words, line_x - 5 - (to_the_right.right_x - to_the_right.left_x), class_)


def label_ending_at(words: str, end_x: float, class_: str) -> Label:
    """Return a label that ends at an x coordinate, or begins at 0 if it is too long."""
    return Label(words, max(0.0, end_x - svg.text_width(words, CHARACTER)), class_)


def arrange_in_rows(labels: Iterable[Label]) -> list[list[Label]]:
    """Return the labels by row. A label for which no row has room is left out; the element that it describes shows the
    same text when the pointer is on it."""
    rows = list[list[Label]]()
    for label in sorted(labels, key=lambda label: label.left_x):
        row = next((row for row in rows if row[-1].right_x + _APART <= label.left_x), None)
        if row is not None:
            row.append(label)
        elif len(rows) < ROWS_MAX:
            rows.append([label])
    return rows


def draw_labels(rows: Sequence[Sequence[Label]], top: float) -> list[str]:
    """Draw labels by row, with the baseline of the first row at `top`."""
    return [
        svg.text(label.words, label.left_x, top + number * ROW, class_=label.class_)
        for number, row in enumerate(rows)
        for label in row
    ]
