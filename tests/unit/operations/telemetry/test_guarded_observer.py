"""Metrics and traces that fail are given up; the run goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.drivers import World
from transactional.operations.telemetry.guarded_observer import GuardedObserver


class Broken:
    """Fails the n-th time that it is notified of anything."""

    def __init__(self, after: int) -> None:
        self.left, self.calls = after, 0

    def begin(self, *_: Any, **__: Any) -> None:
        self._note()

    def __call__(self, at_ms: int, event: Any, actions: Any) -> None:
        self._note()

    def notice(self, *_: Any) -> None:
        self._note()

    def _note(self) -> None:
        self.calls += 1
        self.left -= 1
        if not self.left:
            raise RuntimeError("a bug in metrics")


@pytest.mark.parametrize("after", [1, 2, 3, 9])
def test_an_observer_that_fails_is_notified_no_more(after: int, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken(after)
    summary = World().run(observers=[GuardedObserver(broken, "metrics")])
    assert (summary.failures, summary.transactions > 0) == (0, True)
    assert broken.calls == after
    assert [record.getMessage() for record in caplog.records] == [
        "metrics failed, and are given up until the next start; the run continues"
    ]


def test_an_observer_of_events_alone_needs_nothing_else() -> None:
    seen: list[Any] = []
    World().run(observers=[GuardedObserver(lambda at_ms, event, actions: seen.append(event), "events")])
    assert seen
