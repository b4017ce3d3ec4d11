"""Lines over time as SVG: one panel per figure, one line per system, a mark for each thing that happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tests.experiment.schedule import Kind, Step

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 960, 170, 70, 20, 64, 34
COLOURS = ("#1b6ca8", "#c8643c")
MARKS = {Kind.WORKER: "#888888", Kind.LEADER: "#b00020", Kind.GONE: "#6a1b9a", Kind.BACK: "#b7d7b0"}
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True)
class Panel:
    """One figure over time. `lines` has, per system, its points; None breaks a line. `logarithmic`: from `low` on."""

    title: str
    lines: Sequence[tuple[str, Sequence[Point]]]
    logarithmic: bool = False
    low: float = 0.0


def draw(title: str, panels: Sequence[Panel], steps: Sequence[Step], lasts_s: float) -> str:
    """The picture."""
    height = TOP + len(panels) * (PANEL + GAP) + 10

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / lasts_s

    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    body = [f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', _text(10, 20, title, 14)]
    body += _legend(panels, steps)
    for number, panel in enumerate(panels):
        body += _panel(panel, TOP + number * (PANEL + GAP), steps, x, lasts_s)
    return "\n".join([head, *body, "</svg>", ""])


def _panel(
    panel: Panel, top: float, steps: Sequence[Step], x: Callable[[float], float], lasts_s: float
) -> Iterator[str]:
    bottom = top + PANEL
    values = [value for _, points in panel.lines for _, value in points if value is not None]
    most = max([*values, panel.low * 10]) or 1.0
    ticks = _decades(panel.low, most) if panel.logarithmic else _round_steps(most)

    def y(value: float) -> float:
        if panel.logarithmic:
            share = math.log(max(value, panel.low) / panel.low) / math.log(ticks[-1] / panel.low)
        else:
            share = value / ticks[-1]
        return bottom - (PANEL - 20) * share

    yield _text(LEFT, top + 10, panel.title, 12)
    for tick in ticks:
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#eeeeee"/>'
        yield _text(LEFT - 6, y(tick) + 4, f"{tick:,.10g}", 10, 'text-anchor="end"')
    for minute in range(int(lasts_s // 60) + 1):
        yield _text(x(minute * 60), bottom + 14, f"{minute} min", 10, 'text-anchor="middle"')
    for step in steps:
        ends = f'x1="{x(step.at_s):.1f}" x2="{x(step.at_s):.1f}" y1="{top + 16}" y2="{bottom}"'
        yield f'<line {ends} stroke="{MARKS[step.kind]}" stroke-dasharray="3 2"/>'
    for colour, (_, points) in zip(COLOURS, panel.lines, strict=False):
        for piece in _pieces(points):
            path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in piece)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _pieces(points: Sequence[Point]) -> Iterator[list[tuple[float, float]]]:
    piece: list[tuple[float, float]] = []
    for at, value in points:
        if value is None:
            yield piece
            piece = []
        else:
            piece.append((at, value))
    yield piece


def _legend(panels: Sequence[Panel], steps: Sequence[Step]) -> Iterator[str]:
    x = 10.0
    for colour, (name, _) in zip(COLOURS, panels[0].lines, strict=False):
        yield f'<rect x="{x}" y="32" width="18" height="4" fill="{colour}"/>' + _text(x + 24, 38, name, 11)
        x += 40 + 7 * len(name)
    for kind in (kind for kind in Kind if any(step.kind is kind for step in steps)):
        yield f'<rect x="{x}" y="28" width="2" height="12" fill="{MARKS[kind]}"/>' + _text(x + 8, 38, kind.value, 11)
        x += 30 + 6 * len(kind.value)


def _round_steps(most: float) -> list[float]:
    size = 10 ** math.floor(math.log10(most))
    step = next(size * part for part in (0.2, 0.5, 1, 2, 5) if most / (size * part) <= 5)
    return [number * step for number in range(math.ceil(most / step) + 1)]


def _decades(low: float, most: float) -> list[float]:
    return [low * 10**power for power in range(math.ceil(math.log10(most / low)) + 1)]


def _text(x: float, y: float, text: str, size: int, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {more}>{escape(text)}</text>'
