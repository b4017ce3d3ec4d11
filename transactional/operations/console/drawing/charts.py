"""Small charts over time: an area, or stacked bars, with a scale that can be read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from transactional.model.drawing import svg
from transactional.model.drawing.formats import format_short_count, format_time_of_day
from transactional.operations.console.data.figures import Series

_WIDTH: Final = 360.0
_HEIGHT: Final = 150.0
_LEFT: Final = 44.0
_TOP: Final = 10.0
_BOTTOM: Final = 24.0
_PLOT: Final = _HEIGHT - _TOP - _BOTTOM


def _round_up(most: float) -> float:
    """Return the least round number that is not below `most`, for the top of a scale."""
    unit = 1.0
    while most / unit > 10:
        unit *= 10
    while most / unit <= 1 and unit > 0.01:
        unit /= 10
    return next(unit * factor for factor in (1, 2, 3, 4, 5, 6, 8, 10, 20) if unit * factor >= most)


def _draw_frame(series: Series, top: float) -> list[str]:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + _PLOT * (1 - share)
        parts.append(svg.element("line", class_="grid", x1=_LEFT, x2=_WIDTH, y1=y, y2=y))
        parts.append(svg.text(format_short_count(top * share), _LEFT - 6, y + 4, class_="tick", text_anchor="end"))
    end_ms = series.start_ms + round(series.slot_ms * len(series.slots))
    parts.append(svg.text(format_time_of_day(series.start_ms)[:8], _LEFT, _HEIGHT - 6, class_="tick"))
    parts.append(svg.text(format_time_of_day(end_ms)[:8], _WIDTH, _HEIGHT - 6, class_="tick", text_anchor="end"))
    return parts


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of a page: its heading, drawn as SVG, and as JSON for the script that puts a cursor and zoom into it."""

    words: str
    drawn: str
    plot_json: str


def make_area_chart(words: str, series: Series, values: Sequence[float], label: str, kind: str) -> Chart:
    """Return a chart of one figure over time, as a filled line."""
    return Chart(words, draw_area(series, values, label, kind), _plot_as_json(series, {kind: values}, stacked=False))


def make_stack_chart(words: str, series: Series, layers: Mapping[str, Sequence[float]], label: str) -> Chart:
    """Return a chart of figures that add up, over time, as stacked bars."""
    return Chart(words, draw_stack(series, layers, label), _plot_as_json(series, layers, stacked=True))


def _plot_as_json(series: Series, layers: Mapping[str, Sequence[float]], *, stacked: bool) -> str:
    rounded = {name: [round(number, 2) for number in values] for name, values in layers.items()}
    plot = {"start_ms": series.start_ms, "step_ms": series.slot_ms, "stacked": stacked, "layers": rounded}
    return json.dumps(plot, separators=(",", ":"))


def draw_area(series: Series, values: Sequence[float], label: str, kind: str) -> str:
    """Draw a line, with the area below it filled."""
    top = _round_up(max(*values, 1.0))
    step = (_WIDTH - _LEFT) / max(1, len(values) - 1)
    points = [
        f"{_LEFT + number * step:.1f} {_TOP + _PLOT * (1 - figure / top):.1f}" for number, figure in enumerate(values)
    ]
    line = "M" + "L".join(points)
    area = f"{line}V{_TOP + _PLOT:.1f}H{_LEFT:.1f}Z"
    shapes = (svg.element("path", class_=f"area {kind}", d=area), svg.element("path", class_=f"line {kind}", d=line))
    return svg.picture(_WIDTH, _HEIGHT, label, *_draw_frame(series, top), *shapes, class_="chart")


def draw_stack(series: Series, layers: Mapping[str, Sequence[float]], label: str) -> str:
    """Draw bars of layers upon each other, the first at the bottom."""
    sums = [sum(values) for values in zip(*layers.values(), strict=True)]
    top = _round_up(max(*sums, 1.0))
    step = (_WIDTH - _LEFT) / len(sums)
    parts = _draw_frame(series, top)
    base = [0.0] * len(sums)
    for kind, values in layers.items():
        for number, figure in enumerate(values):
            height = _PLOT * figure / top
            if height > 0.05:
                y = _TOP + _PLOT * (1 - base[number] / top) - height
                bar_x, width = _LEFT + number * step, max(1.0, step - 0.8)
                parts.append(svg.element("rect", class_=kind, x=bar_x, y=y, width=width, height=height))
            base[number] += figure
    return svg.picture(_WIDTH, _HEIGHT, label, *parts, class_="chart")


def draw_pulse(durations: Sequence[tuple[float, str]], label: str) -> str:
    """Draw attempts as thin bars: the height is the duration, the color is that of the outcome."""
    most = max((duration for duration, _ in durations), default=1) or 1
    parts = []
    for number, (duration, kind) in enumerate(durations):
        height = max(3.0, 34 * duration / most)
        parts.append(svg.element("rect", class_=kind, x=number * 7, y=36 - height, width=5, height=height, rx=1))
    return svg.picture(7 * 40, 38, label, *parts, class_="pulse")
