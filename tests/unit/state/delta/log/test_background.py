"""Work beside the transactions: one piece at a time, taken once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from state.delta.log.background import BackgroundWork

NOTHING, UNDER_WAY, ENDED = (False, False), (True, False), (True, True)


def state_of(apart: BackgroundWork[Any]) -> tuple[bool, bool]:
    return apart.is_pending, apart.has_ended


def test_a_piece_is_pending_until_it_is_taken() -> None:
    apart, gate = BackgroundWork[bool]("test"), threading.Event()
    assert state_of(apart) == NOTHING
    apart.start(gate.wait)
    assert state_of(apart) == UNDER_WAY
    gate.set()
    apart.wait(lambda: True)
    assert state_of(apart) == ENDED
    assert apart.take()
    assert state_of(apart) == NOTHING


def test_what_it_raises_is_raised_once_where_it_is_taken() -> None:
    apart = BackgroundWork[int]("test")

    def work() -> int:
        raise OSError("the disk is full")

    apart.start(work)
    apart.wait(lambda: True)
    with pytest.raises(OSError, match="the disk is full"):
        apart.take()
    assert state_of(apart) == NOTHING
    apart.start(lambda: 8)
    apart.wait(lambda: True)
    assert apart.take() == 8


def test_who_may_not_continue_does_not_wait() -> None:
    apart, gate = BackgroundWork[bool]("test"), threading.Event()
    apart.start(gate.wait)
    apart.wait(lambda: False)
    assert state_of(apart) == UNDER_WAY
    gate.set()
    apart.wait(lambda: True)
    assert state_of(apart) == ENDED
    BackgroundWork[bool]("idle").wait(lambda: True)
