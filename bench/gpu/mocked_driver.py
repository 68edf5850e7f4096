"""A CUDA device that is not there: launches, compilations, copies and operators are counted, nothing is computed.

Tensors are on torch's device "meta", which have shapes and no values, so whatever reads a value from the device fails.
Compiled kernels are empty; a replayed graph is one launch. What remains is the host's work, which is that of a real
device up to the driver's own calls. `tests/bench/random_steps.py` runs random steps.

Must be imported before the kernels, and without TRITON_INTERPRET.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget

from ramiform.bench.gpu.dummy_models import decode_plans
from ramiform.kernels import transfer
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.compile_kernels import compile_kernels
from ramiform.runtime.engine.engine import ForwardEngine
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.engine.paths.step_graphs import LargestStep, StepGraphs
from ramiform.runtime.models.config import ModelConfig
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.parameters import allocate_parameters

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
    """Return ones in place of values: a draft is accepted whole."""
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
            made = StepGraphs(model, pool, LargestStep(max_running, context_length, max_tokens), mocked_capture)
            made.capture_all()
    parts = EngineParts(model, pool, graphs=made)
    return ForwardEngine(parts, context_length=context_length, max_running=max_running)


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count what happens inside."""
    before, inside = counts.copy(), Counter[str]()
    with CountedOperators():
        yield inside
    inside.update({name: counts[name] - before[name] for name in counts})


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
