"""What garbage collections between tasks look through."""

from __future__ import annotations

import gc
import weakref
from itertools import count

import pytest

from transactional.model.plumbing import garbage


class Node:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.node = self


def test_what_outlives_a_task_is_looked_through_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "TASKS_BETWEEN_FULL_COLLECTIONS", 3)
    monkeypatch.setattr(garbage, "_tasks", count(1))
    survivor = Node()
    reference = weakref.ref(survivor)
    alive = []
    try:
        for _ in range(3):
            garbage.exclude_survivors()
            survivor = Node()
            young = weakref.ref(Node())
            gc.collect()
            alive.append((reference() is not None, young() is not None))
    finally:
        gc.unfreeze()
    assert alive == [(True, False), (True, False), (False, False)]
    assert survivor.node is survivor
