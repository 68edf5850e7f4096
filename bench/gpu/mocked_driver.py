"""A CUDA device that is not there: launches, compilations, copies and operators are counted, nothing is computed.

Tensors are on torch's device "meta", which have shapes and no values, so whatever reads a value from the device fails.
Compiled kernels are empty; a replayed graph is one launch. What remains is the host's work, which is that of a real
device up to the driver's own calls. `python -P bench/gpu/mocked_driver.py` runs random steps and prints their counts.

Must be imported before the kernels, and without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

from ramiform.bench.gpu.dummy_models import config_of, decode_plans, graphs_of
from ramiform.kernels import transfer
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.compile_kernels import compile_kernels
from ramiform.runtime.engine.engine import ForwardEngine
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.parameters import allocate_parameters
from ramiform.runtime.scheduler.plan import (
    DraftNode,
    ForwardPlan,
    PageCopy,
    Penalties,
    Row,
    RowSampling,
    Sample,
    SamplingPlan,
    Score,
)

META = torch.device("meta")
counts: Counter[str] = Counter()  # launches, replays, compilations, copies, allocations


class _Driver:
    """The part of Triton's driver interface that a launch uses."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def is_active(self) -> bool:
        return True


class _Kernel:
    """A compiled kernel that does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *args: Any) -> None:
        return None

    def run(self, *args: Any) -> None:
        counts["launches"] += 1


def _compile(*args: Any, **kwargs: Any) -> _Kernel:
    counts["compilations"] += 1
    return _Kernel()


def _to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    counts["copies"] += 1
    transfer.pack(arrays, np.empty(transfer.packed_size(arrays), dtype=np.uint8))
    packed = torch.empty(transfer.packed_size(arrays), dtype=torch.uint8, device=device)
    return transfer.unpack(arrays, packed)


def _to_host(tensors: Sequence[torch.Tensor]) -> Callable[[], list[np.ndarray]]:
    """Every value is one: a draft is accepted whole."""
    counts["copies"] += len(tensors)
    arrays = [np.ones(tensor.shape, torch.empty(0, dtype=tensor.dtype).numpy().dtype) for tensor in tensors]
    return lambda: arrays


def _to_buffer(arrays: Sequence[np.ndarray], buffer: torch.Tensor) -> None:
    counts["copies"] += 1
    transfer.pack(arrays, np.empty(transfer.packed_size(arrays), dtype=np.uint8))


def install() -> None:
    """Replace Triton's driver and compiler, and the package's copies between host and device."""
    triton.runtime.driver.set_active(_Driver())  # type: ignore[no-untyped-call]
    triton.compiler.compile = _compile
    mocked = {"to_device": _to_device, "to_host": _to_host, "to_buffer": _to_buffer}
    originals = {name: getattr(transfer, name) for name in mocked}
    for module in [module for name, module in sys.modules.items() if name.startswith("ramiform.")]:
        for name, function in mocked.items():
            if getattr(module, name, None) is originals[name]:
                setattr(module, name, function)


class CountedOperators(TorchDispatchMode):
    """Counts torch's operators that launch a kernel, and those that allocate memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name.startswith(("empty", "new_empty")):
            counts["allocations"] += 1
        elif not func.is_view and name not in ("detach", "alias", "lift_fresh", "_unsafe_view"):
            counts["launches"] += 1
            counts["allocations"] += not (name.endswith("_") or "out" in func._overloadname)
        return func(*args, **(kwargs or {}))


def mocked_capture(forward: Callable[[], None]) -> Callable[[], None]:
    """Run a forward once; its replay is a launch."""
    before = counts["launches"]
    with CountedOperators():
        forward()
    launches = counts["launches"] - before

    def replay() -> None:
        counts["replays"] += 1
        counts["launches in graphs"] += launches

    return replay


def mocked_engine(
    config: ModelConfig,
    *,
    num_pages: int,
    context_length: int,
    max_running: int,
    graphs: bool = True,
    kv_dtype: torch.dtype = torch.bfloat16,
    max_tokens: int = 256,
) -> ForwardEngine:
    """Return an engine of the model with weights and cache without memory, its kernels compiled and graphs captured."""
    config = replace(config, rope=config.rope.within(context_length))
    ops = for_device(META, "triton", attention_cap=config.attention_cap)
    with torch.inference_mode():
        parameters = allocate_parameters(config, device=META, dtype=torch.bfloat16, groups_experts=True)
        model = Decoder(config, parameters, ops)
        pool = KvPool(KvMemory(config, num_pages, device=META, dtype=kv_dtype))
        compile_kernels(model, kv_dtype)
        made = None
        if graphs:
            sizes = {"max_running": max_running, "num_places": context_length, "max_tokens": max_tokens}
            made = graphs_of(model, pool, mocked_capture, **sizes)
            made.capture_all()
    return ForwardEngine(model, pool, context_length=context_length, max_running=max_running, graphs=made)


# Random steps

NUM_SEQUENCES, PAGES, PAGE_SIZE = 12, 20, 16
COUNTED_STEPS = 8  # one of so many random steps


def _sample(draw: random.Random, vocab_size: int) -> Sample:
    penalised = draw.random() < 0.2
    return Sample(
        temperature=draw.choice([0.0, 0.8]),
        top_k=draw.choice([None, 9]),
        top_p=draw.choice([1.0, 0.9]),
        draw=draw.getrandbits(62),
        penalties=Penalties(frequency=0.5, presence=0.1, repetition=1.2, prompt=[1, 2], output=[3])
        if penalised
        else None,
        logit_bias={3: 1.0} if draw.random() < 0.1 else {},
        num_top_logprobs=draw.choice([None, None, 2]),
    )


class RandomSteps:
    """Plans of mixed rows: chunks, decode rows that follow the last step's, drafts, choices scored, forks."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._draw, self._vocab_size = random.Random(seed), vocab_size
        self._lengths = [0] * NUM_SEQUENCES
        self._pages = [list(range(i * PAGES, (i + 1) * PAGES)) for i in range(NUM_SEQUENCES)]
        self._sampled: dict[int, int] = {}  # sequences whose last row sampled one token, by its index in the plan

    def next(self, step: int) -> tuple[ForwardPlan, list[RowSampling | None]]:
        draw, rows, following, copies = self._draw, [], [], []
        kinds = draw.choice([["decode"], ["decode"], ["tree", "chain"], ["decode", "chunk", "fork", "select", "tree"]])
        sampled: dict[int, int] = {}
        for index in draw.sample(range(NUM_SEQUENCES), k=draw.randint(1, NUM_SEQUENCES)):
            kind = draw.choice(kinds)
            if self._lengths[index] > 250:
                self._lengths[index] = 0
            first = self._lengths[index]
            if kind == "fork" and index:
                first = min(self._lengths[index - 1], 200) // PAGE_SIZE * PAGE_SIZE
                shared = self._pages[index - 1][: first // PAGE_SIZE]
                self._pages[index] = [*shared, *range(index * PAGES + len(shared), (index + 1) * PAGES)]
                copies.append(PageCopy(self._pages[index - 1][len(shared)], self._pages[index][len(shared)], 5))
            count = 1 if kind in ("decode", "tree", "chain") else draw.choice([2, 5, 9, 17, 40])
            self._lengths[index] = first + count
            tokens = draw.choices(range(self._vocab_size), k=count)
            sample, mask = _sample(draw, self._vocab_size), None
            if draw.random() < 0.3:
                mask = b"\xf0" * 4 * -(-self._vocab_size // 32)
            row = Row(rid=str(index), tokens=tokens, first_position=first, pages=self._pages[index])
            settings: dict[str, Any] = {"sample": sample, "mask": mask}
            if kind in ("tree", "chain"):
                settings["tokens"] = tokens + draw.sample(range(self._vocab_size), k=5)
                settings["parents"] = [-1, 0, 0, 1, -1] if kind == "tree" else [-1, 0, 1, 2, 3]
                settings["nodes"] = [DraftNode(draw=draw.getrandbits(62))] * 5
            elif kind == "select":
                settings = {"score": Score(first=0, targets=tokens[1:], num_top=2)}
            elif kind == "decode" and index in self._sampled:
                following.append(None if draw.random() < 0.1 else RowSampling(sample, mask))
                settings = {"follows": self._sampled[index]}
            follows_on = following[-1] is not None if "follows" in settings else settings.get("sample") is not None
            if follows_on and "parents" not in settings:
                sampled[index] = len(rows)
            rows.append(_with(row, settings))
        self._sampled = sampled
        return ForwardPlan(step=step, copies=copies, rows=rows), following


def _with(row: Row, settings: dict[str, Any]) -> Row:
    fields = {name: getattr(row, name) for name in ("rid", "tokens", "first_position", "pages")}
    return Row(**(fields | settings))


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what happens inside."""
    before, inside = counts.copy(), Counter[str]()
    with CountedOperators():
        yield inside
    inside.update({name: counts[name] - before[name] for name in counts})


def random_steps(num_steps: int, seed: int = 0) -> dict[str, Any]:
    """Run random steps on a small engine and return the counts: at start, while serving, and in steps whose forward is
    a graph. Steps of more than 64 tokens are launched kernel by kernel."""
    config = config_of(
        "Llama-3-8B", vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    engine = mocked_engine(
        config, num_pages=NUM_SEQUENCES * 64, context_length=320, max_running=NUM_SEQUENCES, max_tokens=64
    )
    at_start = counts["compilations"]
    graphs = engine._runner.graphs
    assert graphs is not None
    in_replays: list[Counter[str]] = []
    plain = graphs.hidden_and_features

    def observed(*args: Any, **kwargs: Any) -> Any:
        before = counts.copy()
        found = plain(*args, **kwargs)
        if found is not None:
            in_replays.append(counts - before)
        return found

    graphs.hidden_and_features = observed  # type: ignore[method-assign]
    steps, served = RandomSteps(seed, config.vocab_size), Counter[str]()
    for number in range(num_steps):
        plan, following = steps.next(number)
        # Counting operators takes longer than a step; compilations, graphs and reads of values are noticed anyway.
        with counted() if number % COUNTED_STEPS == 0 else nullcontext(Counter[str]()) as inside:
            launched = engine.launch(plan)
            if plan.is_open:
                launched.sample(SamplingPlan(number, following))
            launched.wait()
        served.update(inside)
    return {
        "steps": num_steps,
        "compilations at start": at_start,
        "compilations while serving": counts["compilations"] - at_start,
        "steps by graph": len(in_replays),
        "allocations in steps by graph": sum(one["allocations"] for one in in_replays),
        "most launches in a forward by graph": max(map(launches_of, in_replays)),
        "launches in counted steps": served["launches"],
        "launches of a decode step, greedy": launches_of(decode_step(engine, NUM_SEQUENCES, temperature=0.0)),
        "launches of a decode step, drawn": launches_of(decode_step(engine, NUM_SEQUENCES, temperature=0.8)),
    }


def launches_of(counted: Counter[str]) -> int:
    """Return the calls of the driver that queue work: kernels, copies and graphs."""
    return counted["launches"] + counted["copies"] + counted["replays"]


def decode_step(engine: ForwardEngine, num_rows: int, *, temperature: float) -> Counter[str]:
    """Return the counts of a decode step whose rows follow those of the step before."""
    for plan, sampling in decode_plans(num_rows, 16, temperature=temperature):
        with counted() as inside:
            launched = engine.launch(plan)
            if plan.is_open:
                launched.sample(sampling)
            launched.wait()
        if plan.is_open:
            return inside
    raise AssertionError("decode steps have no end")


if __name__ == "__main__":
    install()
    print(json.dumps(random_steps(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
