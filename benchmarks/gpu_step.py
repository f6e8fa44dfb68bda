"""What protection adds to an optimizer step on a GPU, and what its reading costs.

All rows of a size take turns in one run, and medians are reported. Eight groups of five tensors, as in the agent;
gradients stay where they are.

    python benchmarks/gpu_step.py --out benchmarks/results/gpu_step.json

Device time is between two CUDA events around a number of steps, host time until they are issued, wall time until they
are done; all per step, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn, optim

from sp4_lightning import Protection, Settings

GROUPS, TENSORS = 8, 5
SIZES = (200_000, 2_000_000, 20_000_000, 50_000_000, 200_000_000, 500_000_000)
Step = Callable[[], object]


def network(size: int, tensors: int) -> nn.ModuleDict:
    """Groups of equal tensors with gradients, on the GPU."""
    each = size // (GROUPS * tensors)
    net = nn.ModuleDict({f"g{k}": nn.ParameterList(torch.zeros(each) for _ in range(tensors)) for k in range(GROUPS)})
    net.to("cuda")
    for param in net.parameters():
        param.data.normal_(std=0.02)
        param.grad = torch.randn_like(param)
    return net


def adamw(net: nn.ModuleDict, optimizers: int) -> list[optim.AdamW]:
    groups = [list(group.parameters()) for group in net.values()]
    if optimizers == 1:
        return [optim.AdamW([{"params": group} for group in groups], fused=True)]
    return [optim.AdamW(group, fused=True) for group in groups]


def unprotected(size: int, tensors: int, optimizers: int, clip: bool = False) -> Step:
    made = adamw(network(size, tensors), optimizers)
    params = [[p for group in o.param_groups for p in group["params"]] for o in made]

    def step() -> None:
        for optimizer, held in zip(made, params, strict=True):
            if clip:
                nn.utils.clip_grad_norm_(held, 10.0)
            optimizer.step()

    return step


def protected(size: int, tensors: int, optimizers: int) -> Step:
    net = network(size, tensors)
    made = adamw(net, optimizers)
    protection = Protection(made, net, settings=Settings(backend="cuda", warmup_steps=1))
    for _ in range(3):
        for optimizer in made:
            optimizer.step()
        protection.advance()

    def step() -> None:
        for optimizer in made:
            optimizer.step()

    step.protection = protection  # type: ignore[attr-defined]
    return step


def reading(size: int, tensors: int) -> tuple[Step, Step]:
    """The counting pass alone, and all of the oracle: reading, statistic, tracker, bounds."""
    step = protected(size, tensors, 1)
    (engine,) = step.protection.engines  # type: ignore[attr-defined]
    seen = engine._look()

    looks = [launch for launch in engine.backend._protecting if launch[0] == engine.backend._kernels.look]

    def look() -> None:
        engine.backend._launch(*looks)

    def oracle() -> None:
        engine.backend.protect(seen)
        engine.backend.learn(seen, engine._tally)

    return look, oracle


def rivals(size: int, tensors: int) -> dict[str, Step]:
    """What users write: one quantile per group and quantity."""
    net = network(size, tensors)
    groups = [
        [[p, p.grad, torch.rand_like(p), torch.rand_like(p)] for p in group.parameters()] for group in net.values()
    ]

    def of_all(statistic: Callable[[torch.Tensor], object]) -> None:
        for group in groups:
            for row in zip(*group, strict=True):
                statistic(torch.cat([tensor.detach() for tensor in row]).abs())

    rows: dict[str, Step] = {
        "32 x kthvalue": lambda: of_all(lambda x: x.kthvalue(max(1, int(0.999 * len(x))))),
    }
    if size // GROUPS <= 2**24:  # torch.quantile refuses more
        rows["32 x torch.quantile"] = lambda: of_all(lambda x: torch.quantile(x, 0.999))
    return rows


def measure(rows: dict[str, Step], rounds: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, every row once in each."""
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in rows}
    repeats = {}
    for name, step in rows.items():
        step()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        repeats[name] = max(1, min(20, int(0.01 / (time.perf_counter() - begin))))
    for _ in range(rounds):
        for name, step in rows.items():
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin = time.perf_counter()
            first.record()
            for _ in range(repeats[name]):
                step()
            last.record()
            issued = time.perf_counter()
            torch.cuda.synchronize()
            done = time.perf_counter()
            n = repeats[name]
            taken[name].append(
                (1e3 * first.elapsed_time(last) / n, 1e6 * (issued - begin) / n, 1e6 * (done - begin) / n)
            )
    return {
        name: dict(zip(("device", "host", "wall"), map(statistics.median, zip(*times, strict=True)), strict=True))
        for name, times in taken.items()
    }


def bandwidth() -> dict[str, float]:
    """TB/s of this GPU: bytes read and written by a copy, bytes read by a maximum."""
    x, y = (torch.rand(2**29, device="cuda") for _ in range(2))
    times = measure({"copy": lambda: y.copy_(x), "read": x.amax}, 10)
    return {"copy": 2 * 4 * 2**29 / times["copy"]["device"] / 1e6, "read": 4 * 2**29 / times["read"]["device"] / 1e6}


def of_size(size: int, tensors: int, rounds: int, rival_limit: int) -> dict[str, dict[str, float]]:
    rows = {
        "AdamW x8": unprotected(size, tensors, 8),
        "AdamW x1": unprotected(size, tensors, 1),
        "clip_grad_norm_ + AdamW x8": unprotected(size, tensors, 8, clip=True),
        "engine + AdamW x8": protected(size, tensors, 8),
        "engine + AdamW x1": protected(size, tensors, 1),
    }
    rows["counting pass"], rows["oracle"] = reading(size, tensors)
    times = measure(rows, rounds)
    if size <= rival_limit:
        times |= measure(rivals(size, tensors), 3)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rival-limit", type=int, default=20_000_000, help="above this size kthvalue takes too long")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {
        "machine": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "bandwidth": bandwidth(),
        "sizes": {},
    }
    for size, tensors in [*((size, TENSORS) for size in options.sizes), (20_000_000, 250)]:
        times = of_size(size, tensors, options.rounds, options.rival_limit if tensors == TENSORS else 0)
        result["sizes"][f"{size}/{GROUPS * tensors}"] = times
        torch.cuda.empty_cache()
        print(f"\n{size:,} parameters in {GROUPS * tensors} tensors", flush=True)
        for name, each in times.items():
            print(f"  {name:30} " + "  ".join(f"{what} {value:10.1f}" for what, value in each.items()), flush=True)
        read = 16 * size / times["counting pass"]["device"] / 1e6
        print(
            f"  counting pass reads {read:.2f} TB/s, {read / result['bandwidth']['read']:.2f} of what a maximum reads"
        )
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
