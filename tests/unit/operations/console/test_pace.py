"""How often an open page is loaded again."""

from __future__ import annotations

import pytest

from transactional.operations.console.pace import pause_s


def test_open_pages_take_a_small_share_of_a_processor() -> None:
    """An expensive one is loaded more rarely, and so is each of several."""
    assert pause_s(1.0, 0.02, open_pages=3) == pytest.approx(3.0)
    assert pause_s(1.0, 0.004) == 1.0
    assert pause_s(1.0, 0.04) == pytest.approx(2.0)
    assert pause_s(1.0, 60.0) == 10.0, "an examination by the doctor is no page that is made again and again"
