"""GRPO of a mixture of experts: transformers is the trainer, and its routers replay the experts of the rollouts.

    python examples/training/moe_grpo.py MODEL [--steps 10] [--no-replay]

MODEL is a Mixtral, OLMoE, Qwen2-MoE or Qwen3-MoE checkpoint of safetensors. The runtime records which experts each
token went through, and the trainer's forward pass forces them. So log-probabilities of both differ by rounding alone,
and no importance ratio by experts that one of them did not use. The reward is the share of the letter "e".
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import ramiform
from ramiform import ProgramState, gen
from ramiform.tools.replay_experts import replayed_experts

CLIP = 0.2
OPENINGS = ("The weather today is", "My favourite town is", "A letter to a friend:", "The first thing to do is")


@ramiform.function
def write(s: ProgramState, opening: str) -> None:
    s += opening + gen("text", max_tokens=24)


def reward(example: Any, state: ProgramState) -> float:
    """Return the share of the letter "e"."""
    return state["text"].count("e") / max(1, len(state["text"]))


def padded(values: Sequence[Sequence[Any]], empty: Any) -> Tensor:
    """Return rows of different length as one tensor; None and what is missing are `empty`."""
    length = max(map(len, values))
    filled = [[*row, *[None] * (length - len(row))] for row in values]
    return torch.tensor([[empty if one is None else one for one in row] for row in filled])


def logprobs_of(model: Any, rows: Sequence[dict[str, Any]], *, replays: bool = True) -> Tensor:
    """Return the trainer's log-probabilities [B, T - 1] of all tokens but the first, by the recorded experts."""
    ids = padded([row["ids"] for row in rows], 0)
    config = model.config
    own = [[-1] * config.num_experts_per_tok] * config.num_hidden_layers  # where the router chooses by itself
    experts = padded([row["experts"] for row in rows], own)
    with replayed_experts(model, experts) if replays else nullcontext():
        logits = model(ids, use_cache=False).logits[:, :-1].float()
    return logits.gather(2, ids[:, 1:, None]).squeeze(2) - logits.logsumexp(-1)


def loss_of(model: Any, rows: Sequence[dict[str, Any]], *, replays: bool = True) -> tuple[Tensor, float]:
    """Return the clipped policy-gradient loss, and the mean size of the log ratio to the runtime's probabilities."""
    own = logprobs_of(model, rows, replays=replays)
    mask = padded([row["mask"] for row in rows], False)[:, 1:].float()
    log_ratio = (own - padded([row["drawn_logprobs"] for row in rows], 0.0)[:, 1:]) * mask
    advantages = padded([row["advantages"] for row in rows], 0.0)[:, 1:]
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * mask).sum() / mask.sum(), float(log_ratio.detach().abs().sum() / mask.sum())


def train(engine: ramiform.Engine, model: Any, *, steps: int, replays: bool = True, rate: float = 1e-4) -> list[float]:
    """Train; return the mean size of each step's log ratios, before its weights change."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    mismatches = []
    for step in range(1, steps + 1):
        dataset = [{"opening": opening} for opening in OPENINGS]
        found = ramiform.rollouts(write, dataset, reward, group=4, backend=engine.runtime, seed=step,
                                  return_routed_experts=True)  # fmt: skip
        optimizer.zero_grad()
        loss, mismatch = loss_of(model, found.rows(), replays=replays)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with tempfile.TemporaryDirectory() as folder:  # the model holds all experts in one tensor, the files do not
            model.save_pretrained(folder)
            engine.update_weights(folder, version=f"step-{step}")
        mismatches.append(mismatch)
        print(f"step {step}: reward {found.mean_reward:.3f}, mean |log ratio| {mismatch:.1e}", flush=True)
    return mismatches


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a mixture of experts with its routing replayed.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-replay", action="store_false", dest="replays")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    with ramiform.Engine(str(options.model), dtype="float32", enable_return_routed_experts=True) as engine:
        train(engine, model, steps=options.steps, replays=options.replays)


if __name__ == "__main__":
    main()
