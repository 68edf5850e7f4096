"""GRPO, its tree version and the plain policy gradient at equal numbers of generated tokens.

    python -P bench/training/grpo.py [--tokens 2000] [--rates 3e-5 1e-4 3e-4] [--seeds 1 2 3]

Runs examples/training/grpo.py. GRPO and its tree version have a learning rate of 1e-4; the plain gradient has that of
`--rates` with which it does best on seed 0, which is no seed that counts. What is compared is the mean share of
held-out answers that are right over the generated tokens (the area under the curve). The curves are printed as they
come.
"""

from __future__ import annotations

import argparse
import itertools
import runpy
import time
from pathlib import Path

import torch

import ramiform

EXAMPLE = Path(ramiform.__file__).parent / "examples/training/grpo.py"
Curve = list[tuple[int, float]]  # generated tokens, share of held-out answers that are right


def area(curve: Curve, tokens: int) -> float:
    """Return the mean of a curve, straight between its points, over 0 to `tokens`."""
    total = 0.0
    for (start, first), (end, last) in itertools.pairwise(curve):
        if end > tokens:
            first, last, end = first, first + (last - first) * (tokens - start) / (end - start), tokens
        total += (end - start) * (first + last) / 2
    return total / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare GRPO with its tree version and the plain policy gradient.")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-5, 1e-4, 3e-4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    train = runpy.run_path(str(EXAMPLE), run_name="grpo")["train"]

    with ramiform.Engine(dtype="float32", log_level="error") as engine:

        def run(method: str, rate: float, seed: int) -> float:
            began = time.perf_counter()
            curve = train(engine, seed=seed, tokens=options.tokens, method=method, rate=rate, log=False)
            found, took = area(curve, options.tokens), time.perf_counter() - began
            points = ", ".join(f"{used}: {share:.0%}" for used, share in curve)
            print(
                f"| {method} | {rate:g} | {seed} | {found:.1%} | {curve[-1][1]:.0%} | {took:.0f} s | {points} |",
                flush=True,
            )
            return found

        print(
            "| method | learning rate | seed | area | end | time | curve |\n|---|---|---|---:|---:|---:|---|",
            flush=True,
        )
        areas = {"grpo": [run("grpo", 1e-4, seed) for seed in options.seeds]}
        best = max(options.rates, key=lambda rate: run("reinforce", rate, 0))
        areas["reinforce"] = [run("reinforce", best, seed) for seed in options.seeds]
        areas["tree"] = [run("tree", 1e-4, seed) for seed in options.seeds]
    for method, other in (("grpo", "reinforce"), ("tree", "grpo")):
        wins = sum(one > two for one, two in zip(areas[method], areas[other], strict=True))
        print(f"{method} has the larger area than {other} in {wins} of {len(options.seeds)} seeds")


if __name__ == "__main__":
    main()
