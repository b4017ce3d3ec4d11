"""Plots as SVG, drawn here: bars on a logarithmic scale, each with a line from the smallest to the largest figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.figures import Spread
from bench.sheets import PLOTS
from bench.targets import Documents, formatted

WIDTH, LABELS, ROW, HEAD = 860, 250, 18, 40
_COLOURS = ("#2f6f9f", "#7fb2d6", "#15425f", "#a9cde6", "#c8643c", "#e0a87f", "#888888")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its group, its name, and what was measured."""

    group: str
    name: str
    spread: Spread


def throughput(part: str, documents: Documents) -> list[Bar]:
    """Messages a second."""
    return [_bar(each, Spread(**each["messages_per_second"])) for each in _summaries(part, documents)]


def latency(part: str, documents: Documents) -> list[Bar]:
    """Milliseconds from planned to committed; the bar ends at p95, the line goes from p50 to p99."""
    timed = [each for each in _summaries(part, documents) if each["p50_ms"]]
    return [_bar(each, Spread(each["p50_ms"], each["p95_ms"], each["p99_ms"])) for each in timed]


_KINDS: Mapping[str, tuple[str, Callable[[str, Documents], list[Bar]]]] = {
    "throughput": ("messages a second; bar median, line minimum to maximum", throughput),
    "latency": ("milliseconds from planned to committed; bar p95, line p50 to p99", latency),
}


def draw(title: str, bars: Sequence[Bar]) -> str:
    """The plot as SVG."""
    names = list(dict.fromkeys(bar.name for bar in bars))
    low = 10 ** math.floor(math.log10(min(bar.spread.min for bar in bars)))
    high = 10 ** math.ceil(math.log10(max(bar.spread.max for bar in bars) * 1.01))
    groups = list(dict.fromkeys(bar.group for bar in bars))
    height = HEAD + ROW * (len(bars) + len(groups)) + 24

    def at(figure: float) -> float:
        return LABELS + (WIDTH - LABELS - 90) * math.log(figure / low) / math.log(high / low)

    body = [*_scale(low, high, height, at), *_rows(groups, bars, names, at)]
    style = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {style}>'
    back = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, back, _text(10, 20, title, 'font-weight="bold"'), *body, "</svg>", ""])


def save(documents: Documents, directory: Path) -> list[Path]:
    """Write the plots of all parts that were measured; return their paths."""
    paths = []
    for part, kind in ((part, kind) for part, kinds in PLOTS.items() for kind in kinds):
        title, bars_of = _KINDS[kind]
        if bars := bars_of(part, documents):
            paths.append(directory / f"{part}-{kind}.svg")
            paths[-1].write_text(draw(f"{part}: {title}", bars), "utf-8")
    return paths


def _rows(
    groups: Sequence[str], bars: Sequence[Bar], names: Sequence[str], at: Callable[[float], float]
) -> Iterator[str]:
    y = HEAD
    for group in groups:
        y += ROW
        yield _text(10, y - 5, group, 'font-weight="bold"')
        for bar in (bar for bar in bars if bar.group == group):
            colour = _COLOURS[names.index(bar.name) % len(_COLOURS)]
            spread, middle = bar.spread, y + ROW / 2
            width = max(at(spread.median) - LABELS, 1)
            yield f'<rect x="{LABELS}" y="{y + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}"/>'
            ends = f'x1="{at(spread.min):.1f}" x2="{at(spread.max):.1f}"'
            yield f'<line {ends} y1="{middle}" y2="{middle}" stroke="#000000"/>'
            yield _text(30, y + 13, bar.name)
            yield _text(at(spread.max) + 6, y + 13, formatted(spread.median))
            y += ROW


def _scale(low: float, high: float, height: int, at: Callable[[float], float]) -> Iterator[str]:
    tick = low
    while tick <= high:
        x = f"{at(tick):.1f}"
        yield f'<line x1="{x}" x2="{x}" y1="{HEAD}" y2="{height - 20}" stroke="#dddddd"/>'
        yield _text(at(tick) - 10, height - 6, f"{tick:,.0f}")
        tick *= 10


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" {style}>{escape(text)}</text>'


def _bar(summary: Mapping[str, Any], spread: Spread) -> Bar:
    return Bar(f"{summary['work']}, batches of {summary['batch_messages']:,}", summary["system"], spread)


def _summaries(part: str, documents: Documents) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = documents.get(part, {}).get("summaries", [])
    return sorted(found, key=lambda each: (each["work"], each["batch_messages"]))
