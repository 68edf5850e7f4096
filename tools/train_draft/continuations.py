"""Continuations of prompts by the target model: the texts that a head will have to draft.

A plain generation loop over the engine, with a fixed set of prompts at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ...runtime.engine.engine import ForwardEngine
from ...runtime.engine.kv_pool import PAGE_SIZE, KvMemory, KvPool
from ...runtime.engine.paths import EngineParts
from ...runtime.models.decoder import Decoder
from ...runtime.scheduler.plan import ForwardPlan, Row, Sample

_MAX_TOKENS = 1 << 15  # of prompts and continuations generated together


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
    """Generate at most `num_tokens` ids after each prompt, up to the first id in `ends`, which is included.

    Results are in the order of the prompts, which are not empty and shorter than the model's context. `on_done` is
    called with the number of finished prompts.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    draw = random.Random(seed)
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    start = 0
    while start < len(order):
        group: list[int] = []
        while start < len(order) and (len(group) + 1) * (len(prompts[order[start]]) + num_tokens) <= _MAX_TOKENS:
            group.append(order[start])
            start += 1
        if not group:  # one prompt longer than the limit
            group, start = [order[start]], start + 1
        _continue(
            model,
            [prompts[index] for index in group],
            [answers[index] for index in group],
            num_tokens,
            frozenset(ends),
            temperature,
            draw,
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
    draw: random.Random,
) -> None:
    context = model.config.context_length
    limits = [min(num_tokens, context - len(prompt)) for prompt in prompts]
    sizes = [-(-(len(prompt) + limit) // PAGE_SIZE) for prompt, limit in zip(prompts, limits, strict=True)]
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    pool = KvPool(KvMemory(model.config, sum(sizes), device=model.device, dtype=model.dtype))
    engine = ForwardEngine(EngineParts(model, pool))
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
                    sample=Sample(temperature=temperature, draw=draw.getrandbits(63)),
                    widened=not answer,
                )
            )
        results = engine.run(ForwardPlan(step=step, copies=[], rows=rows)).rows
        step += 1
        for index, result in zip(running, results, strict=True):
            answers[index] += result.tokens
        running = [index for index in running if answers[index][-1] not in ends and len(answers[index]) < limits[index]]
