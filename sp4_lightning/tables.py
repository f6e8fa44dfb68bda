"""The tables on the terminal: coverage when a fit starts, summary when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from sp4_lightning.coverage import GroupCoverage
from sp4_lightning.quantities import GRAD, QUANTITIES
from sp4_lightning.report import Report

WIDTH = 110
"""What the tables need; a log file is given that much even where no terminal says so."""


def console() -> Console:
    """A console wide enough for the tables when the output is not a terminal."""
    out = Console()
    return out if out.is_terminal else Console(width=max(out.width, WIDTH))


def coverage_table(rows: Sequence[GroupCoverage]) -> Table:
    """The rows as a rich table."""
    table = Table(title="SP4 coverage", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("group", "optimizer"):
        table.add_column(name, no_wrap=True)
    for name in ("tensors", "parameters"):
        table.add_column(name, justify="right")
    for name in (*QUANTITIES, "wired"):
        table.add_column(name, no_wrap=True)
    for row in rows:
        cells = [row.quantities[quantity] if row.optimizer else "-" for quantity in QUANTITIES]
        table.add_row(row.group, row.optimizer or "-", str(row.tensors), f"{row.parameters:,}", *cells, row.status)
    return table


def summary_table(report: Report) -> Table:
    """Per group: updates, bound, share clamped (all and worst tensor), repairs, skips of its optimizer."""
    table = Table(title=f"SP4 summary (phase: {report.phase.name.lower()})", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("group", no_wrap=True)
    for name in ("updates", "skipped", "bound on grad", "clamped", "worst tensor", "repairs"):
        table.add_column(name, justify="right")
    for optimizer in report.optimizers:
        for group, observed in optimizer.observed.items():
            tensors = report.of(group)
            counted = sum(tensor.counted for tensor in tensors)
            clamped = sum(tensor.clamped for tensor in tensors)
            table.add_row(
                group,
                str(observed),
                str(optimizer.skipped),
                f"{report.bounds[group][GRAD]:.3g}",
                f"{clamped / counted if counted else 0.0:.1e}",
                f"{max(tensor.share for tensor in tensors):.1e}",
                str(sum(tensor.repaired for tensor in tensors)),
            )
    return table


def result_table(metrics: Mapping[str, float], seconds: float, log_dir: str | None) -> Table:
    """What a fit came to: the last evaluation, the environment steps, the time, and where the logs are."""
    table = Table(title="Result", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for key in sorted(key for key in metrics if key.startswith("eval/")):
        table.add_row(key, f"{metrics[key]:.1f}")
    if "train/env_steps" in metrics:
        table.add_row("environment steps", f"{metrics['train/env_steps']:,.0f}")
    table.add_row("minutes", f"{seconds / 60:.1f}")
    table.add_row("logs", log_dir or "-")
    return table
