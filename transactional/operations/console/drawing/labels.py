"""Labels that do not lie upon each other: each in the first row that has room for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from transactional.model.drawing import svg

CHARACTER: Final = 6.2
"""The mean width of a character of a label."""
ROW: Final = 15.0
ROWS_MAX: Final = 3
_APART: Final = 8.0


@dataclass(frozen=True, slots=True)
class Label:
    """A short text that begins at `left`; `class_` is its style."""

    words: str
    left: float
    class_: str

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.left + svg.text_width(self.words, CHARACTER)


def beside(words: str, x: float, class_: str, width: float) -> Label:
    """To the right of a line, or to its left if a picture of this width ends before."""
    right = Label(words, x + 5, class_)
    return right if right.right <= width else Label(words, x - 5 - (right.right - right.left), class_)


def before(words: str, x: float, class_: str) -> Label:
    """Up to a place, as far as the picture does not begin after it."""
    return Label(words, max(0.0, x - svg.text_width(words, CHARACTER)), class_)


def in_rows(labels: Iterable[Label]) -> list[list[Label]]:
    """The labels by row. Where no row has room for one it is left out: what it belongs to says the same when it is
    pointed at."""
    rows = list[list[Label]]()
    for label in sorted(labels, key=lambda each: each.left):
        row = next((row for row in rows if row[-1].right + _APART <= label.left), None)
        if row is not None:
            row.append(label)
        elif len(rows) < ROWS_MAX:
            rows.append([label])
    return rows


def draw_labels(rows: Sequence[Sequence[Label]], top: float) -> list[str]:
    """Them, the first row at this baseline."""
    return [
        svg.text(label.words, label.left, top + number * ROW, class_=label.class_)
        for number, row in enumerate(rows)
        for label in row
    ]
