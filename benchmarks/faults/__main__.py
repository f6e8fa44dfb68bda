"""Run a fault suite, or go on with it.

python -m benchmarks.faults benchmarks/faults/smoke.yaml --workers 2            # runs/faults/smoke/...
python -m benchmarks.faults benchmarks/faults/standard.yaml --workers 16 --minutes 10    # again and again
python -m benchmarks.faults benchmarks/faults/standard.yaml --collect           # tables of what is there
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.faults.collect import collect
from benchmarks.faults.jobs import make_rows
from benchmarks.faults.reading import read_suite
from benchmarks.faults.schedule import Schedule
from benchmarks.faults.trainer import quieten
from sp4_lightning.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", type=Path, help="a YAML file")
    parser.add_argument("--tasks", nargs="+", help="only these of the suite's")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "faults", help="where results are kept")
    parser.add_argument("--minutes", type=float, help="end within them; the same command goes on later")
    parser.add_argument("--collect", action="store_true", help="only make tables and picture of what is there")
    parser.add_argument("--root", type=Path, default=ROOT, help="where --collect writes benchmarks/results and docs")
    options = parser.parse_args(arguments)
    quieten()
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    try:
        suite = read_suite(options.suite, options.tasks)
    except ConfigurationError as error:
        sys.exit(f"faults: error: {error}")
    rows = make_rows(suite, options.runs)
    if options.collect:
        collect(suite, rows, options.root)
        return
    schedule = Schedule(rows, options.workers, None if options.minutes is None else 60 * options.minutes)
    schedule.run()
    done, count = schedule.done()
    print(f"{done} of {count} done", flush=True)
    if schedule.failed:
        sys.exit(f"{len(schedule.failed)} jobs failed; the same command tries them again.")


if __name__ == "__main__":
    main()
