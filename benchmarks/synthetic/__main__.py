"""Run the bench: some six minutes of one core.

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
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.chart import BLUE, RED, Chart, Line, figure
from benchmarks.synthetic import report, sensitivity
from benchmarks.synthetic.candidates import CANDIDATES, RESOLUTIONS, by_rank
from benchmarks.synthetic.measure import SEEDS, TradeOff, Value, of_faults, of_groups, of_the_rest, trade_off

RANKS = (4, 10, 17, 25, 40, 64)
GREEN, GREY = "#2f8f5b", "#888888"


def draw(families: dict[str, dict[int, TradeOff]], points: dict[str, TradeOff]) -> str:
    """Both meanings of "blocked" against re-admission; the rules of one rank family in each line."""
    lines = [("bound alone", BLUE), ("bound alone, rise 1.03", RED)], [("bound alone", BLUE), ("library", GREEN)]
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
        drawn.append(Line([at(points[name]) for name in ("mean", "chart", "vote")], GREY, dots=True))
        drawn.append(Line([at(points["library"])], GREEN, width=3.5, dots=True))
        label = f"{title} (large: library; grey: mean, chart, vote)"
        charts.append(Chart("Updates until x100 is admitted", label, drawn))
    return figure(charts)


Values = dict[str, dict[str, dict[str, list[float]]]]


def values(of: dict[str, Iterable[Value]]) -> Values:
    """Figure -> stream -> rule -> one value per seed."""
    tree: Values = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for name, found in of.items():
        for value in found:
            tree[value.figure][value.stream][name].append(value.value)
        print(name, flush=True)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[2], help="where results and docs are")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = values({name: chain(of_faults(make()), of_the_rest(make())) for name, make in CANDIDATES.items()})
    groups = values({name: of_groups(make()) for name, make in RESOLUTIONS.items()})
    points = {name: trade_off(make()) for name, make in CANDIDATES.items()}
    families = {name: {rank: trade_off(make(rank)) for rank in RANKS} for name, make in by_rank().items()}
    rows = sensitivity.measure()
    machine = f"{platform.machine()}, one thread of a machine with {os.cpu_count()} cores that others were using"
    results_at = options.root / "benchmarks" / "results"
    (results_at / "synthetic.md").write_text(report.write(results, points, groups, rows, len(SEEDS), machine))
    tree = {
        "machine": machine,
        "what": "one value per seed, of sensitivity their medians; null: none, or never",
        "figures": results,
        "groups": groups,
        "sensitivity": rows,
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
