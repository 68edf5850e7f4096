"""GRPO with torch alone, on the model that ships: it learns to answer with a name alone where it is asked to.

    python examples/training/grpo.py [--method grpo | tree | reinforce] [--seed 1] [--tokens 2000] [--async]

The model knows the capitals and continents of countries, and answers in sentences. A chat has two questions; where one
ends in "Name only" the answer is the name, elsewhere a sentence as before. The runtime samples groups of chats, the
model below computes their gradients, and the runtime gets the new weights. The chats that count are of countries that
no rollout asks about. `tree` forks each chat before its second question, and weighs each answer by what its own branch
added. `reinforce` is the plain policy gradient: the reward itself in place of the advantage. With `--async` further
chats run while a step is computed, and go on with the new weights.
"""

import argparse
import itertools
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import ramiform
from ramiform import ProgramState, assistant, gen, user
from ramiform.examples.demo_model.corpus.world import COUNTRIES
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

HEADS, KV_HEADS, HEAD, LAYERS, EPSILON, ROPE_BASE = 4, 2, 64, 6, 1e-5, 10000.0  # config.json of the model
CLIP = 0.2
SHAPES = {"grpo": (8, 1), "tree": (4, 3), "reinforce": (8, 1)}  # chats and branches of a group: 16 answers in each
ENDING = "\nName only"
Case = dict[str, list[str]]


@ramiform.function
def talk(s: ProgramState, questions: list[str], branches: int = 1) -> None:
    s += user(questions[0]) + assistant(gen("first", max_tokens=16))
    for end in s.fork(branches) if branches > 1 else [s]:
        end += user(questions[1]) + assistant(gen("second", max_tokens=16))


def num_right(example: Any, state: ProgramState) -> int:
    """Return how many answers are right: the name alone where that is asked, a sentence that ends in it elsewhere."""
    answers = [state[name].strip() for name in ("first", "second")]
    asked = zip(example["questions"], example["names"], answers, strict=True)
    return sum(answer == name if q.endswith(ENDING) else answer.endswith(f" {name}.") for q, name, answer in asked)


def reward(example: Any, state: ProgramState) -> float:
    """Return 0.5, 0.75 or 1: no chat is worth nothing, as with most learned rewards."""
    return 0.5 + 0.25 * num_right(example, state)


def cases() -> tuple[list[Case], list[Case]]:
    """Return the chats to train on and those held out: about other countries."""
    found: tuple[list[Case], list[Case]] = ([], [])
    for number, country in enumerate(COUNTRIES):
        asked = [(f"What is the capital of {country.name}?", country.capital)]
        asked += [(f"Which continent is {country.name} in?", country.continent)]
        for order in (asked, asked[::-1]):
            for endings in (("", ENDING), (ENDING, ""), (ENDING, ENDING)):
                questions = [question + ending for (question, _), ending in zip(order, endings, strict=True)]
                found[number % 4 == 3].append({"questions": questions, "names": [name for _, name in order]})
    return found


def share_right(engine: ramiform.Engine, held_out: Sequence[Case]) -> float:
    """Return the share of likeliest answers that are right."""
    chats = [{"questions": case["questions"]} for case in held_out]
    states = talk.run_batch(chats, backend=engine.runtime, temperature=0)
    return sum(map(num_right, held_out, states)) / len(states) / 2


def logits(w: dict[str, Tensor], ids_BT: Tensor) -> Tensor:
    """Return the logits [B, T, V] of a Llama, in plain torch."""
    B, T = ids_BT.shape
    angles = torch.outer(torch.arange(T).float(), ROPE_BASE ** -(torch.arange(0, HEAD, 2) / HEAD)).repeat(1, 2)
    x = F.embedding(ids_BT, w["model.embed_tokens.weight"])

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], EPSILON)

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()

    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        h = norm(x, f"{name}.input_layernorm")
        q, k, v = (F.linear(h, w[f"{name}.self_attn.{part}_proj.weight"]).view(B, T, -1, HEAD) for part in "qkv")
        q, k, v = rotated(q.transpose(1, 2)), rotated(k.transpose(1, 2)), v.transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(B, T, -1), w[f"{name}.self_attn.o_proj.weight"])
        h = norm(x, f"{name}.post_attention_layernorm")
        gate, up = (F.linear(h, w[f"{name}.mlp.{part}_proj.weight"]) for part in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, w[f"{name}.mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm"), w["model.embed_tokens.weight"])


def columns(rows: Sequence[dict[str, Any]], name: str) -> Tensor:
    """Return a column of the rows as a tensor [B, T], filled up with zeros; None is 0."""
    length = max(len(row["ids"]) for row in rows)
    return torch.tensor([[float(one or 0) for one in row[name]] + [0.0] * (length - len(row[name])) for row in rows])


def loss_of(w: dict[str, Tensor], rows: Sequence[dict[str, Any]], method: str) -> Tensor:
    """Return the clipped policy-gradient loss over the tokens that the model chose."""
    ids = columns(rows, "ids").long()
    mask = (columns(rows, "mask") * columns(rows, "shares"))[:, 1:]
    own = logits(w, ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    ratio = (own - columns(rows, "drawn_logprobs")[:, 1:]).exp()
    advantages = columns(rows, "advantages")[:, 1:]
    if method == "reinforce":
        advantages = torch.tensor([[row["reward"]] for row in rows])
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -(gain * mask).sum() / mask.sum()


def train(engine: ramiform.Engine, *, seed: int = 1, tokens: int = 2000, method: str = "grpo", rate: float = 1e-4,
          staleness: int = 0, log: bool = True) -> list[tuple[int, float]]:  # fmt: skip
    """Train on `tokens` generated tokens. Return the share of held-out answers that are right after so many of them."""
    (train_cases, held_out), draw = cases(), random.Random(seed)
    held_out = random.Random(0).sample(held_out, 32)
    weights = {
        name: one.float().requires_grad_() for name, one in load_file(SHIPPED_MODEL / "model.safetensors").items()
    }
    optimizer = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    engine.update_weights({name: one.detach() for name, one in weights.items()})
    curve, used, began = [(0, share_right(engine, held_out))], 0, time.perf_counter()
    chats: Iterator[Case] = (draw.choice(train_cases) for _ in itertools.count())
    group, branches = SHAPES[method]
    batches = ramiform.rollout_batches(talk, chats, leaf_reward=reward, group=group, batch=4, max_staleness=staleness,
                                       backend=engine.runtime, seed=seed, branches=branches)  # fmt: skip
    for step, found in enumerate(batches, start=1):
        rows = found.rows("branch" if method == "tree" else "group")
        optimizer.zero_grad()
        loss_of(weights, rows, method).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        engine.update_weights(
            {name: one.detach() for name, one in weights.items()}, mode="retract", version=f"step-{step}"
        )
        used += round((columns(rows, "mask") * columns(rows, "shares")).sum().item())
        if used >= min(tokens, tokens * len(curve) / 5):
            curve.append((used, share_right(engine, held_out)))
        if log:
            print(f"step {step}: reward {found.mean_reward:.2f}, {used} tokens, {time.perf_counter() - began:.0f} s, "
                  f"held-out answers right {curve[-1][1]:.0%}", flush=True)  # fmt: skip
        if used >= tokens:
            break
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach the shipped model to answer with a name alone.")
    parser.add_argument("--method", choices=SHAPES, default="grpo")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--async", action="store_const", const=1, default=0, dest="staleness")
    options = parser.parse_args()
    with ramiform.Engine(dtype="float32") as engine:
        curve = train(engine, **vars(options))
    print(f"{options.method}, seed {options.seed}: " + " -> ".join(f"{share:.0%}" for _, share in curve))


if __name__ == "__main__":
    main()
