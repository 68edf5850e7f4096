"""What the target itself says after given prompts: the texts that a head will have to draft.

A plain loop over the engine, a fixed set of prompts at a time; the order of prompts is theirs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ..engine.engine import Engine
from ..engine.kv_pool import PAGE_SIZE, KvMemory, KvPool
from ..models.decoder import Decoder
from ..scheduler.plan import ForwardPlan, Row, Sample

_MAX_TOKENS = 1 << 15  # of the prompts computed together, with what follows them


def continuations(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    ends: Sequence[int],
    temperature: float = 0.0,
    seed: int = 0,
    on_done: Callable[[int], None] = lambda count: None,
) -> list[list[int]]:
    """At most `num_tokens` ids after each prompt, the first of `ends` being the last. `on_done` hears how many prompts
    are finished. Prompts are not empty, and shorter than the model's context."""
    answers: list[list[int]] = [[] for _ in prompts]
    luck = random.Random(seed)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    start = 0
    while start < len(order):
        group: list[int] = []
        while start < len(order) and (len(group) + 1) * (len(prompts[order[start]]) + num_tokens) <= _MAX_TOKENS:
            group.append(order[start])
            start += 1
        if not group:  # one prompt longer than all that
            group, start = [order[start]], start + 1
        _continue(
            model,
            [prompts[index] for index in group],
            [answers[index] for index in group],
            num_tokens,
            frozenset(ends),
            temperature,
            luck,
        )
        on_done(start)
    return answers


def _continue(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    answers: list[list[int]],
    num_tokens: int,
    ends: frozenset[int],
    temperature: float,
    luck: random.Random,
) -> None:
    context = model.config.context_length
    limits = [min(num_tokens, context - len(prompt)) for prompt in prompts]
    sizes = [-(-(len(prompt) + limit) // PAGE_SIZE) for prompt, limit in zip(prompts, limits, strict=True)]
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    engine = Engine(model, KvPool(KvMemory(model.config, sum(sizes), device=model.device, dtype=model.dtype)))
    running = [index for index, limit in enumerate(limits) if limit > 0]
    step = 0
    while running:
        rows = []
        for index in running:
            prompt, answer = prompts[index], answers[index]
            known = len(prompt) + len(answer)
            pages = range(firsts[index], firsts[index] + -(-known // PAGE_SIZE))
            rows.append(
                Row(
                    rid=str(index),
                    tokens=[answer[-1]] if answer else list(prompt),
                    first_position=known - 1 if answer else 0,
                    pages=list(pages),
                    sample=Sample(temperature=temperature, draw=luck.getrandbits(63)),
                )
            )
        results = engine.run(ForwardPlan(step=step, copies=[], rows=rows)).rows
        step += 1
        for index, result in zip(running, results, strict=True):
            answers[index] += result.tokens
        running = [index for index in running if answers[index][-1] not in ends and len(answers[index]) < limits[index]]
