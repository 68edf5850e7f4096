"""Weight updates under load: no request is lost, and every token is of the version of weights that its answer names.

    python -P bench/training/weight_updates.py [--updates 1000] [--in-flight 12] [--judged 400]

The model that ships serves requests without a break while its weights change, in every mode. Each finished request is
counted, and its versions are compared with the updates' order. `--judged` requests, spread over the run, are judged:
the recorded log-probability of each token against transformers' by the weights of the version that it names. Tokens
that `keep` lets go on over keys and values of older weights are counted and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

MODES = ("retract", "finish", "keep", "abort")
NUM_WEIGHTS = 4
TOLERANCE = 2e-3


def versions_of(meta: dict[str, Any]) -> list[str]:
    """Return the version of each token of an answer."""
    runs = meta.get("weight_versions") or [(meta["weight_version"], meta["completion_tokens"])]
    return [name for name, count in runs for _ in range(count)]


class Run:
    """The engine under load, what it answered and what it was told."""

    def __init__(self, engine: ramiform.Engine, weights: list[dict[str, torch.Tensor]], seed: int) -> None:
        self.engine = engine
        self.weights = weights
        self.draw = random.Random(seed)
        self.answers: list[tuple[list[int], dict[str, Any]]] = []
        self.order: dict[str, int] = {}  # number of the update that made a version
        self.modes: list[str] = []
        self.num_asked = 0
        self.is_over = False

    async def ask(self) -> None:
        """Ask one request after another until the updates are over."""
        while not self.is_over:
            self.num_asked += 1
            prompt = self.engine.tokenizer.encode(f"Question: What is the capital of country {self.draw.randrange(9)}?")
            sampling = {"temperature": 0.9, "max_new_tokens": self.draw.randrange(4, 64), "ignore_eos": True}
            result = await self.engine.agenerate(input_ids=prompt, sampling_params=sampling, return_logprob=True)
            self.answers.append((prompt, result))

    async def update(self, number: int) -> float:
        """Change some weights; return the seconds that it took."""
        name, mode = f"{number % len(self.weights)}-{number}", self.draw.choice(MODES)
        self.order[name] = number
        self.modes.append(mode)
        began = time.perf_counter()
        await asyncio.to_thread(
            self.engine.update_weights, self.weights[number % len(self.weights)], mode=mode, version=name
        )
        return time.perf_counter() - began


async def load(run: Run, num_updates: int, in_flight: int) -> list[float]:
    """Update while requests are in flight; return the seconds of each update."""
    seconds = [await run.update(0)]
    asking = [asyncio.create_task(run.ask()) for _ in range(in_flight)]
    try:
        for number in range(1, num_updates + 1):
            seconds.append(await run.update(number))
            if number % 100 == 0:
                print(f"{number} updates, {len(run.answers)} requests", flush=True)
    finally:
        run.is_over = True
    await asyncio.gather(*asking)
    return seconds


def judges(weights: list[dict[str, torch.Tensor]]) -> list[transformers.PreTrainedModel]:
    """Return transformers' model of each set of weights."""
    made = []
    for tensors in weights:
        judge = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32).eval()
        judge.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, strict=False)
        made.append(judge)
    return made


def judge(run: Run, num_judged: int) -> Counter[str]:
    """Check all answers' versions, and the log-probabilities of some; return what was counted."""
    counts: Counter[str] = Counter()
    models = judges(run.weights)
    step = max(1, len(run.answers) // num_judged)
    for number, (prompt, result) in enumerate(run.answers):
        ids, meta = result["output_ids"], result["meta_info"]
        names = versions_of(meta)
        assert len(names) == len(ids) == len(meta["output_token_logprobs"])
        updates = [run.order[name] for name in names]
        assert updates == sorted(updates), f"versions go back: {names}"
        counts[f"finish {meta['finish_reason']['type']}"] += 1
        counts["requests of several versions"] += len(set(updates)) > 1
        if number % step or not ids:
            continue
        tokens = torch.tensor([prompt + ids])
        kept = next((n for n in range(updates[0] + 1, updates[-1] + 1) if run.modes[n] == "keep"), updates[-1] + 1)
        with torch.inference_mode():
            scores = {n % NUM_WEIGHTS: models[n % NUM_WEIGHTS](tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
                      for n in set(updates)}  # fmt: skip
        for place, (update, (logprob, token, _)) in enumerate(zip(updates, meta["output_token_logprobs"], strict=True)):
            if update >= kept:
                counts["tokens over older keys, not judged"] += 1
                continue
            counts["tokens judged"] += 1
            off = abs(logprob - float(scores[update % NUM_WEIGHTS][place, token]))
            assert off < TOLERANCE, f"request {number}, token {place}: {off} from the weights of {names[place]}"
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description="Change weights under load and judge every token's version.")
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--in-flight", type=int, default=12)
    parser.add_argument("--judged", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    plain = load_file(SHIPPED_MODEL / "model.safetensors")
    names = [name for name in plain if "q_proj" in name]
    weights = [{name: (1 + 0.15 * number) * plain[name] for name in names} for number in range(NUM_WEIGHTS)]
    began = time.perf_counter()
    with ramiform.Engine(dtype="float32", num_pages=512, speculative="off", log_level="error") as engine:
        run = Run(engine, weights, options.seed)
        seconds = sorted(asyncio.run(load(run, options.updates, options.in_flight)))
    took = time.perf_counter() - began
    assert len(run.answers) == run.num_asked, "requests were lost"
    counts = judge(run, options.judged)
    print(f"{options.updates} updates and {run.num_asked} requests in {took:.0f} s, none lost")
    print(f"an update, waits included: median {seconds[len(seconds) // 2]:.3f} s, largest {seconds[-1]:.2f} s")
    print("modes: " + ", ".join(f"{mode} {count}" for mode, count in sorted(Counter(run.modes).items())))
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")


if __name__ == "__main__":
    main()
