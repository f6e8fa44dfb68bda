"""Line charts as SVG, side by side and in rows, with nothing but strings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, TOP = 420, 190, 58, 46
Points = Sequence[tuple[float, float]]
BLUE, RED = "#3b6fb6", "#b5542d"


class Line(NamedTuple):
    """One line of a chart, or its points as dots; without a label it is not named."""

    points: Points
    colour: str = BLUE
    label: str = ""
    width: float = 1.8
    dots: bool = False


class Chart(NamedTuple):
    """Lines over a common x-axis."""

    title: str
    x_label: str
    lines: Sequence[Line]
    log: bool = False


def figure(charts: Sequence[Chart], columns: int = 2) -> str:
    """The charts as one SVG."""
    across, down = LEFT + WIDTH + 30, TOP + HEIGHT + 48
    columns = min(columns, len(charts))
    drawn = [
        f'<g transform="translate({(k % columns) * across} {(k // columns) * down})">\n{_draw(chart)}\n</g>'
        for k, chart in enumerate(charts)
    ]
    size = f'width="{columns * across + 8}" height="{math.ceil(len(charts) / columns) * down}"'
    style = "text{font:11px sans-serif;fill:#666}.title{font-weight:bold}.grid{stroke:#8884;stroke-width:1}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>\n' + "\n".join(drawn) + "\n</svg>\n"


def _draw(chart: Chart) -> str:
    points = [point for line in chart.lines for point in line.points]
    scale = math.log10 if chart.log else float
    x_max = max(x for x, _ in points)
    values = [scale(y) for _, y in points] + ([] if chart.log else [0.0])
    low, high = min(values), max(values)

    def height(value: float) -> float:
        return TOP + HEIGHT * (1 - (value - low) / (high - low))

    out = [f'<text x="{LEFT}" y="{TOP - 14}" class="title">{chart.title}</text>']
    for tick in range(math.ceil(low), math.floor(high) + 1) if chart.log else _ticks(low, high):
        label = f"1e{tick}" if chart.log else f"{tick:.0f}"
        out.append(f'<path d="M{LEFT} {height(tick):.1f}H{LEFT + WIDTH}" class="grid"/>')
        out.append(f'<text x="{LEFT - 8}" y="{height(tick) + 4:.1f}" text-anchor="end">{label}</text>')
    for k in range(5):
        x = LEFT + WIDTH * k / 4
        out.append(f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{x_max * k / 4:,.0f}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">{chart.x_label}</text>')
    for line in chart.lines:
        places = [(f"{LEFT + x / x_max * WIDTH:.1f}", f"{height(scale(y)):.1f}") for x, y in line.points]
        if line.dots:
            out += [f'<circle cx="{x}" cy="{y}" r="{2 * line.width}" fill="{line.colour}"/>' for x, y in places]
            continue
        path = " ".join(f"{x},{y}" for x, y in places)
        stroke = f'stroke="{line.colour}" stroke-width="{line.width}"'
        out.append(f'<polyline points="{path}" fill="none" {stroke}/>')
    for k, line in enumerate(line for line in chart.lines if line.label):
        place = f'x="{LEFT + WIDTH}" y="{TOP - 14 - 13 * k}" text-anchor="end"'
        out.append(f'<text {place} style="fill:{line.colour}">{line.label}</text>')
    return "\n".join(out)


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers from low to high."""
    raw = (high - low) / 5
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= raw)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
