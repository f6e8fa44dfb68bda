"""The README's picture, from a run's own metrics.csv.

    python benchmarks/curve.py runs/version_0 --group dqn_value --name cartpole

writes ``benchmarks/results/cartpole.json`` (the points) and ``docs/cartpole.svg`` (greedy return over updates, and one
group's largest gradient under its learned bound).
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
from pathlib import Path

from chart import BLUE, RED, Chart, Line, Points, figure


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


def draw(series: dict[str, Points], group: str) -> str:
    """The picture as SVG."""
    bounded = [Line(series["bound"], RED, "learned bound"), Line(series["largest gradient"], BLUE, "largest |grad|")]
    return figure(
        [
            Chart("CartPole-v1, greedy return", "updates", [Line(series["greedy return"], BLUE, "20 episodes")]),
            Chart(f"{group}: largest |grad| and its bound", "updates", bounded, log=True),
        ]
    )


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
