"""Processes that kill themselves at a given point: what the programs with sinks have in common."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

from transactional import Topology, TopologyConfig, run_topology

Point = tuple[Any, str, str]
"""A class, the name of one of its methods, and whether the process dies "before" or "after" the call."""

ROWS = [(f"word-{number % 7}", number) for number in range(120)]
BAD = {17, 58, 93}
"""The numbers on which a bolt fails."""


def die_at(point: Point | None, number: int) -> None:
    """Kill this process when it comes to a point for the n-th time."""
    if point is None:
        return
    owner, name, when = point
    original: Callable[..., Any] = getattr(owner, name)
    calls = Counter[str]()

    def deadly(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        is_last = calls[name] == number
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        returned = original(*arguments, **named)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)
        return returned

    setattr(owner, name, deadly)


def run(topology: Topology, processing: str, store_url: str, **options: Any) -> None:
    """Run until everything is done. `processing` is "none" for a run without Spark and workers."""
    defaults = {"max_spout_pending": 2, "stop_when_drained": True, "tick_ms": 10, "retry_pause_ms": 10}
    if processing != "none":
        options["processing"] = processing
    master = "local[2]" if processing in ("spark", "auto") else "none"
    run_topology(topology, store=store_url, config=TopologyConfig(**defaults | options), master=master)
