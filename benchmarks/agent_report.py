"""Tables and curves of the agent's learning runs, see agent.py."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from chart import BLUE, RED, Chart, Line, figure
from tables import bootstrap, table

ROOT = Path(__file__).parent.parent
Runs = dict[str, dict[int, dict[str, Any]]]
"""Results by experiment and seed."""


def collect(directory: Path) -> None:
    """Gather all results in a directory and write agent.json, agent.md and learning.svg."""
    results = [json.loads(path.read_text()) for path in sorted(directory.glob("*/*.json"))]
    results.sort(key=lambda result: (result["experiment"], result["seed"]))
    if not results:
        raise SystemExit(f"There are no results in {directory}.")
    runs: Runs = {}
    for result in results:
        runs.setdefault(result["experiment"], {})[result["seed"]] = result
    kept = ROOT / "benchmarks" / "results"
    lines = ",\n".join(json.dumps(result) for result in results)
    (kept / "agent.json").write_text(f"[\n{lines}\n]\n")
    (kept / "agent.md").write_text(tables(runs))
    (ROOT / "docs" / "learning.svg").write_text(figure(charts(runs)))


def tables(runs: Runs) -> str:
    """All tables as Markdown."""
    machines = {
        f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}"
        for seeds in runs.values()
        for machine in (result["machine"] for result in seeds.values())
    }
    said = f"one thread a run, on {' and '.join(sorted(machines))}"
    return "\n\n".join(
        [
            "# Learning runs of the agent",
            f"Made by `python benchmarks/agent.py --collect` from `agent.json`; {said}. An experiment's name lists the "
            "overlays of `configs/` it is composed of.",
            "## Greedy returns at the end of training\n\nEpisodes that no validation has played; `curve` is the mean "
            "over all validations on the way; steps per CPU-second without the evaluations, median of the runs.",
            returns(runs),
            "## Paired differences\n\nAgainst the first overlay alone, same seeds; mean and 95% bootstrap interval of "
            "the mean (10,000 resamples). With three seeds the interval is little more than their range.",
            differences(runs),
            "## Share of gradient elements beyond their bound\n\nOver whole runs, all seeds together. In observe mode "
            "nothing is clamped: it is the share that would have been, the warm-up included.",
            shares(runs),
            "",
        ]
    )


def returns(runs: Runs) -> str:
    """Returns by seed, and what the run took."""
    rows = []
    for experiment, seeds in runs.items():
        some = next(iter(seeds.values()))
        results = seeds.values()
        rows.append(
            [
                experiment,
                ", ".join(f"{result['return']:.0f}" for result in results),
                f"{statistics.mean(result['return'] for result in results):.1f}",
                f"{statistics.mean(curve_mean(result) for result in results):.1f}",
                f"{some['env_steps']:,}",
                f"{statistics.median(result['env_steps'] / result['cpu_seconds'] for result in results):.0f}",
                str(sum(result["skips"] for result in results)),
                str(sum(group["repairs"] for result in results for group in result["groups"].values())),
            ]
        )
    seeds = sorted({str(sorted(seeds)) for seeds in runs.values()})
    note = f"Seeds {' or '.join(seeds)}, in this order."
    head = ["experiment", "return by seed", "mean", "curve", "steps", "steps / CPU-s", "skips", "repairs"]
    return f"{table(head, rows)}\n\n{note}"


def differences(runs: Runs) -> str:
    """Variants against what they vary, seed by seed."""
    rows = []
    for experiment, seeds in runs.items():
        base = runs.get(experiment.split("+")[0], {})
        common = sorted(set(seeds) & set(base)) if base is not seeds else []
        if not common:
            continue
        cells = []
        for measure in (lambda result: result["return"], curve_mean):
            pairs = np.array([measure(seeds[seed]) - measure(base[seed]) for seed in common])
            low, high = bootstrap(pairs)
            cells += [f"{pairs.mean():+.1f}", f"{low:+.1f} to {high:+.1f}"]
        rows.append([experiment, str(len(common)), *cells])
    return table(["experiment", "seeds", "return", "interval", "curve", "interval"], rows)


def shares(runs: Runs) -> str:
    """The clamped share by group."""
    groups = list(max((result["groups"] for seeds in runs.values() for result in seeds.values()), key=len))
    rows = []
    for experiment, seeds in runs.items():
        cells = []
        for group in groups:
            of = [result["groups"][group] for result in seeds.values() if group in result["groups"]]
            counted = sum(figures["counted"] for figures in of)
            cells.append(f"{sum(figures['clamped'] for figures in of) / counted:.1e}" if counted else "-")
        rows.append([experiment, *cells])
    return table(["experiment", *groups], rows)


def curve_mean(result: dict[str, Any]) -> float:
    """Mean return over all validations of a run."""
    return statistics.mean(value for _, value in result["curve"])


def charts(runs: Runs) -> list[Chart]:
    """One chart for every environment; the hidden one also without attention."""
    return [
        Chart(name, "environment steps", [*lines(runs, name, BLUE), *lines(runs, f"{name}+no_attention", RED)])
        for name in ("cartpole", "cartpole_hidden", "acrobot", "lunarlander", "lunarlander_continuous")
        if name in runs
    ]


def lines(runs: Runs, experiment: str, colour: str) -> list[Line]:
    """Every seed thin, their mean thick."""
    curves = [result["curve"] for result in runs.get(experiment, {}).values()]
    if not curves:
        return []
    mean = [(point[0][0], statistics.mean(value for _, value in point)) for point in zip(*curves, strict=False)]
    return [*(Line(curve, colour, width=0.5) for curve in curves), Line(mean, colour, experiment, 2.2)]
