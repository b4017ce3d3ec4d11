"""What the experiment found: as JSON, as a picture, and in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results import in_lines
from tests.experiment.charts import Panel, draw
from tests.experiment.schedule import Plan, Step
from tests.experiment.timeline import Recovery, Run

PICTURE, FIGURES = "machine-failures.svg", "machine-failures.json"


def save(folder: Path, plan: Plan, runs: Sequence[Run], facts: Mapping[str, Any]) -> None:
    """Write the picture and the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    title = f"Workers and leaders killed under a load of {facts['rate']:,.0f} messages a second"
    (folder / PICTURE).write_text(draw(title, panels(runs), plan.steps(), plan.lasts_s), "utf-8")
    found = {**facts, "systems": {run.name: _figures(run, plan.steps()) for run in runs}}
    (folder / FIGURES).write_text(in_lines(found), "utf-8")


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Throughput, lag, latency and failures over time."""
    p50 = [(run.name, [(each.at_s, each.p50_s) for each in run.latencies()]) for run in runs]
    p99 = [(run.name, [(each.at_s, each.p99_s) for each in run.latencies()]) for run in runs]
    return [
        Panel("committed messages a second", [(run.name, run.throughput()) for run in runs]),
        Panel("lag: messages due and not committed", [(run.name, run.lag()) for run in runs], True, 100.0),
        Panel("latency p50, seconds", p50, True, 0.01),
        Panel("latency p99, seconds", p99, True, 0.01),
        Panel("failed attempts; of Structured Streaming: ended drivers", [(run.name, _in_all(run)) for run in runs]),
    ]


def lines(run: Run, steps: Sequence[Step]) -> Iterator[str]:
    """A system in words."""
    half, most = run.percentile(0.5), run.percentile(0.99)
    yield f"{run.name}: latency p50 over all seconds {_seconds(half)}, of the worst percent {_seconds(most)}"
    yield f"  {len(run.committed)} commits, {len(run.failed_at_s)} failures"
    for each in run.recoveries(steps):
        yield f"  {each.step.at_s:>5.0f} s {each.step.kind.value}: lag as before after {_seconds(each.first_s)}, "
        yield f"         and from {_seconds(each.seconds)} on"


def _figures(run: Run, steps: Sequence[Step]) -> dict[str, Any]:
    return {
        "p50_s": run.percentile(0.5),
        "p99_s": run.percentile(0.99),
        "commits": len(run.committed),
        "failures_at_s": [round(at, 2) for at in run.failed_at_s],
        "recoveries": [_recovery(each) for each in run.recoveries(steps)],
        "lag": [[at, lag] for at, lag in run.lag(step_s=1.0)],
        "throughput": run.throughput(),
        "latency": [[each.at_s, each.p50_s, each.p99_s] for each in run.latencies()],
    }


def _recovery(each: Recovery) -> dict[str, Any]:
    return {
        "at_s": each.step.at_s,
        "what": each.step.kind.value,
        "lag_before": each.lag_before,
        "first_seconds": each.first_s,
        "seconds": each.seconds,
    }


def _in_all(run: Run) -> list[tuple[float, float | None]]:
    stairs: list[tuple[float, float | None]] = [(0.0, 0.0)]
    for before, at in enumerate(sorted(run.failed_at_s)):
        stairs += [(at, float(before)), (at, float(before + 1))]
    return [*stairs, (run.due[-1].at_s, float(len(run.failed_at_s)))]


def _seconds(seconds: float | None) -> str:
    return "not before the next kill" if seconds is None else f"{seconds:.2f} s"
