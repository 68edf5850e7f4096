"""Plays constrained requests on a scheduler and an engine in one process, and keeps what came of each.

Knows no schema and no judge. A request enters when another has ended, so that no more than `at_once` grammars are held.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from ramiform.runtime.engine import Engine
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.core import CoreReply, FromCore, Generate, RequestFailed
from ramiform.runtime.scheduler.scheduler import Scheduler

COMPILE_POLL = 0.001  # seconds between looks while nothing but grammars is under way


@dataclass
class Output:
    """What a request got. `finish` is None when it failed, and `error` says why."""

    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None


@dataclass
class Cost:
    """Of a whole play. A forward computes one step of all requests that run."""

    seconds: float = 0.0
    num_forwards: int = 0


def play(
    engine: Engine, scheduler: Scheduler, requests: Iterable[Generate], at_once: int
) -> tuple[dict[str, Output], Cost]:
    """All of the requests, by rid, at most `at_once` of them at a time."""
    outputs: dict[str, Output] = {}
    cost = Cost()
    waiting = iter(requests)
    num_live, exhausted = 0, False
    began = time.perf_counter()

    def take(answers: Iterable[FromCore]) -> None:
        nonlocal num_live
        for answer in answers:
            assert not isinstance(answer, CoreReply)
            num_live -= _add(outputs, answer)

    while num_live or not exhausted:
        while num_live < at_once and not exhausted:
            request = next(waiting, None)
            if request is None:
                exhausted = True
                break
            outputs[request.rid] = Output()
            num_live += 1
            take(scheduler.handle(request, time.monotonic(), b""))
        plan = scheduler.plan(time.monotonic())
        take(scheduler.answers())
        if plan is not None:
            cost.num_forwards += 1
            take(scheduler.commit(plan, engine.run(plan), time.monotonic()))
        elif num_live:
            time.sleep(COMPILE_POLL)
    cost.seconds = time.perf_counter() - began
    return outputs, cost


def _add(outputs: dict[str, Output], answer: Any) -> bool:
    """Whether the request has ended."""
    output = outputs[answer.rid]
    if isinstance(answer, RequestFailed):
        output.error = answer.error.message
        return True
    output.ids += answer.ids
    if answer.finish is not None:
        output.finish = answer.finish.type
    return answer.finish is not None


def random_checkpoint(folder: Path, context_length: int = 2048, seed: int = 0) -> Path:
    """A tiny model that knows nothing, with the shipped tokenizer: what it writes, it writes because it must."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=2048,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context_length,
        tie_word_embeddings=False,
        eos_token_id=[1, 7],
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(SHIPPED_MODEL / name, folder)
    return folder
