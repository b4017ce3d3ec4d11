"""Windows of a stream are not continued by another time, nor by another aggregate."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from spouts.memory import MemoryTransactionalSpout
from state.memory import MemoryMapState, MemoryTable
from transactional.errors import TopologyChanged
from transactional.model.config import TopologyConfig
from transactional.runtime.engine.driver import TopologyDriver
from transactional.runtime.executors.local import LocalExecutor
from transactional.testing import MemoryCoordinatorStore
from transactional.trident import Count, Max, Sum, TridentTopology, count, session, tumbling

TIMES = [tumbling("5 seconds"), session("5 seconds", longest="1 hour")]
CLICKS = [("home", datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 2, 12, tzinfo=UTC), 1)]


class Clicks:
    """A topology that is started again, each time with other windows over the same table."""

    def __init__(self) -> None:
        self.store, self.table = MemoryCoordinatorStore(), MemoryTable("windows")

    def start(
        self, window: Any, aggregate: Any, *, on: str | None = None, event_time: str = "at", accept: bool = False
    ) -> None:
        topology = TridentTopology("clicks")
        source = MemoryTransactionalSpout([CLICKS], "page string, at timestamp, seen timestamp, n long", 1)
        stream = topology.new_stream("clicks", source, event_time=event_time, max_ahead=None)
        windows = stream.group_by("page").window(window, on=on)
        windows.persistent_aggregate(MemoryMapState(table=self.table), n=aggregate, name="w")
        built = topology.build(strict=True)
        config = TopologyConfig(stop_when_drained=True)
        TopologyDriver(built, self.store, LocalExecutor(built), config, accept_changes=accept).run()


@pytest.mark.parametrize("window", TIMES)
def test_another_time_has_to_be_accepted(window: Any) -> None:
    clicks = Clicks()
    clicks.start(window, Count())
    for event_time in ("at", "seen"):
        with pytest.raises(TopologyChanged, match=r'w\.window_time: stored "at", given "seen"'):
            clicks.start(window, Count(), on="seen", event_time=event_time)
    clicks.start(window, Count(), on="seen", accept=True)


@pytest.mark.parametrize("window", [*TIMES, count(4, every=2)])
@pytest.mark.parametrize("accept", [False, True])
def test_another_aggregate_is_refused(window: Any, accept: bool) -> None:  # noqa: FBT001
    clicks = Clicks()
    clicks.start(window, Sum("n"))
    with pytest.raises(TopologyChanged, match=r"column 'n' values that are combined by sum, and .* them by max"):
        clicks.start(window, Max("n"), accept=accept)
