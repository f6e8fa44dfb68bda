"""The README's picture, from a run's own metrics.csv.

    python benchmarks/curve.py runs/version_0 --group dqn_value --name cartpole

writes ``benchmarks/results/cartpole.json`` (the points) and ``docs/cartpole.svg`` (greedy return over updates, and one
group's largest gradient under its learned bound).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import platform
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 190, 58, 46, 70
Points = list[tuple[float, float]]


def read(run: Path, group: str) -> dict[str, Points]:
    """Series of ``(update, value)`` from the CSV logger's file."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = {
        "greedy return": "eval/return",
        "largest gradient": f"sp4-max_grad/{group}",
        "bound": f"sp4-bound_grad/{group}",
        "environment steps": "train/env_steps",
    }
    return {
        name: [(float(row["step"]) + 1, float(row[column])) for row in rows if row[column] not in ("", "inf")]
        for name, column in columns.items()
    }


def panel(x0: int, title: str, lines: dict[str, tuple[Points, str]], log: bool) -> str:
    """One chart with its axes; ``lines`` maps a label to points and a colour."""
    points = [point for series, _ in lines.values() for point in series]
    scale = math.log10 if log else float
    x_max = max(x for x, _ in points)
    low = min(scale(y) for _, y in points) if log else 0.0
    high = max(scale(y) for _, y in points)

    def place(x: float, y: float) -> str:
        return f"{x0 + x / x_max * WIDTH:.1f},{TOP + HEIGHT * (1 - (scale(y) - low) / (high - low)):.1f}"

    out = [f'<text x="{x0}" y="{TOP - 14}" class="title">{title}</text>']
    ticks = range(math.ceil(low), math.floor(high) + 1) if log else [high * k / 4 for k in range(5)]
    for tick in ticks:
        y = TOP + HEIGHT * (1 - (tick - low) / (high - low))
        label = f"1e{tick}" if log else f"{tick:.0f}"
        out.append(f'<path d="M{x0} {y:.1f}H{x0 + WIDTH}" class="grid"/>')
        out.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for k in range(5):
        x = x0 + WIDTH * k / 4
        out.append(f'<text x="{x}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{x_max * k / 4:,.0f}</text>')
    out.append(f'<text x="{x0 + WIDTH / 2}" y="{TOP + HEIGHT + 36}" text-anchor="middle">updates</text>')
    for k, (label, (series, colour)) in enumerate(lines.items()):
        path = " ".join(place(x, y) for x, y in series)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        out.append(
            f'<text x="{x0 + WIDTH}" y="{TOP - 14 - 13 * k}" text-anchor="end" style="fill:{colour}">{label}</text>'
        )
    return "\n".join(out)


def draw(series: dict[str, Points], group: str) -> str:
    """The picture as SVG."""
    left = panel(LEFT, "CartPole-v1, greedy return", {"20 episodes": (series["greedy return"], "#3b6fb6")}, log=False)
    right = panel(
        LEFT + WIDTH + GAP,
        f"{group}: largest |grad| and its bound",
        {"learned bound": (series["bound"], "#b5542d"), "largest |grad|": (series["largest gradient"], "#3b6fb6")},
        log=True,
    )
    size = f'width="{LEFT + 2 * WIDTH + GAP + 20}" height="{TOP + HEIGHT + 48}"'
    style = "text{font:11px sans-serif;fill:#666}.title{font-weight:bold}.grid{stroke:#8884;stroke-width:1}"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>\n{left}\n{right}\n</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--group", default="dqn_value")
    parser.add_argument("--name", default="cartpole")
    options = parser.parse_args()
    series = read(options.run, options.group)
    root = Path(__file__).parent.parent
    machine = f"{platform.machine()}, CPU, one thread"
    result = {"machine": machine, "group": options.group, "config": f"configs/{options.name}.yaml", "series": series}
    (root / "benchmarks" / "results" / f"{options.name}.json").write_text(json.dumps(result) + "\n")
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / f"{options.name}.svg").write_text(draw(series, options.group))


if __name__ == "__main__":
    main()
