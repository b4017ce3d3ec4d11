"""Labels: none lies upon another or leaves the picture, whatever there is to say."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from transactional.operations.console.drawing.labels import (
    ROWS_MAX,
    Label,
    arrange_in_rows,
    label_ending_at,
    label_next_to,
)

WIDTH = 1_120.0
PLACES = st.floats(0, WIDTH)


@example([(WIDTH - 10, "12", True)])
@given(st.lists(st.tuples(PLACES, st.text("0123456789", min_size=1, max_size=12), st.booleans()), max_size=40))
def test_no_label_lies_upon_another(places: list[tuple[float, str, bool]]) -> None:
    labels = [
        label_next_to(words, x, "", WIDTH) if is_run else label_ending_at(words, x, "") for x, words, is_run in places
    ]
    rows = arrange_in_rows(labels)
    assert len(rows) <= ROWS_MAX
    assert all(label.left_x >= 0 and label.right_x <= WIDTH for row in rows for label in row)
    for row in rows:
        assert all(left.right_x < right.left_x for left, right in pairwise(row))


def test_all_labels_are_there_where_there_is_room() -> None:
    few = [Label("run 1", 10, ""), Label("run 2", 20, ""), Label("run 3", 30, "")]
    assert [len(row) for row in arrange_in_rows(few)] == [1, 1, 1]
    assert [len(row) for row in arrange_in_rows([*few, Label("run 4", 40, ""), Label("run 5", 90, "")])] == [2, 1, 1]
