"""Run the bench: some two and a half minutes of one core.

    python -m benchmarks.synthetic

Writes ``benchmarks/results/synthetic.json`` (every figure by seed), ``benchmarks/results/synthetic.md`` and
``docs/trade_off.svg``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.chart import BLUE, RED, Chart, Line, figure
from benchmarks.synthetic import report
from benchmarks.synthetic.candidates import CANDIDATES, CHOSEN, by_rank
from benchmarks.synthetic.measure import SEEDS, TradeOff, of_faults, of_the_rest, trade_off

RANKS = (4, 10, 17, 25, 40, 64)
GREEN, GREY = "#2f8f5b", "#888888"


def draw(families: dict[str, dict[int, TradeOff]], points: dict[str, TradeOff]) -> str:
    """Both meanings of "blocked" against re-admission; the rules of one rank family in each line."""
    lines = [("library", BLUE), ("library, rise 1.03", RED)], [("library", BLUE), (CHOSEN, GREEN)]
    titles = "longest burst that leaves the bound alone", "longest burst that leaves Adam unharmed"
    charts = []
    for meaning, (named, title) in enumerate(zip(lines, titles, strict=True)):

        def at(point: TradeOff, meaning: int = meaning) -> tuple[float, float]:
            return float(np.median(point[meaning])), float(np.median(point.admitted))

        drawn = []
        for name, colour in named:
            places = [at(point) for point in families[name].values()]
            drawn.append(Line(places, colour, f"{name}, ranks {RANKS[0]} to {RANKS[-1]}"))
            drawn.append(Line(places, colour, dots=True))
        drawn.append(Line([at(points["mean"]), at(points["chart"])], GREY, dots=True))
        drawn.append(Line([at(points[CHOSEN])], GREEN, width=3.5, dots=True))
        charts.append(Chart("Updates until x100 is admitted", f"{title} (large: chosen; grey: mean and chart)", drawn))
    return figure(charts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="where results and docs are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    points: dict[str, TradeOff] = {}
    for name, make in CANDIDATES.items():
        for value in (*of_faults(make()), *of_the_rest(make())):
            results[value.figure][value.stream][name].append(value.value)
        points[name] = trade_off(make())
        print(name, flush=True)
    families = {name: {rank: trade_off(make(rank)) for rank in RANKS} for name, make in by_rank().items()}
    machine = f"{platform.machine()}, one thread of a machine with {os.cpu_count()} cores that others were using"
    results_at = options.root / "benchmarks" / "results"
    (results_at / "synthetic.md").write_text(report.write(results, points, len(SEEDS), machine))
    what = "one value per seed; null: none, or never"
    tree = {
        "machine": machine,
        "what": what,
        "figures": results,
        "trade_off": {name: point._asdict() for name, point in points.items()},
        "trade_off_by_rank": {name: {k: p._asdict() for k, p in family.items()} for name, family in families.items()},
    }
    (results_at / "synthetic.json").write_text(json.dumps(_plain(tree)) + "\n")
    (options.root / "docs" / "trade_off.svg").write_text(draw(families, points))


def _plain(tree: object) -> object:
    """As JSON has it: six digits, and null for what is not finite."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    if isinstance(tree, float):
        return float(f"{tree:.6g}") if math.isfinite(tree) else None
    return tree


if __name__ == "__main__":
    main()
