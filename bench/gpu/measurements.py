"""Measurements on a GPU, or of tiny shapes without one: timing, notes, and engines of dummy models."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ramiform.bench.gpu.dummy_models import config_of, dummy_model, pages_of_row
from ramiform.kernels.dispatch import for_device
from ramiform.runtime.engine.engine import ForwardEngine
from ramiform.runtime.engine.kv_pool import KvMemory, KvPool
from ramiform.runtime.engine.paths import EngineParts
from ramiform.runtime.engine.paths.step_graphs import CudaCapture, LargestStep, StepGraphs
from ramiform.runtime.models.stored.kv_scales import KvScales

Measurement = Iterator[dict[str, Any]]
KV_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "int8": torch.int8}


@dataclass
class Hour:
    """The device, the shapes, and what was measured so far."""

    device: torch.device
    dry: bool  # tiny shapes
    file: Path
    profiled: bool = False  # a profiler looks: each call is made once under it, and its time means nothing
    rows: list[dict[str, Any]] = field(default_factory=list)
    start: float = field(default_factory=time.monotonic)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of weights; Triton's interpreter computes no bfloat16."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @property
    def capture(self) -> Any:
        """Return what captures graphs: CUDA, or on a device without them a replay of the forward itself."""
        return CudaCapture() if self.device.type == "cuda" else lambda forward: forward

    def run(self, name: str, measure: Callable[[], Measurement]) -> None:
        """Run a measurement, and write its lines as they come."""
        try:
            for row in measure():
                self._note({"what": name, **row})
        except Exception as error:
            traceback.print_exc()
            self._note({"what": name, "failed": f"{type(error).__name__}: {str(error).splitlines()[:1]}"})
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _note(self, row: dict[str, Any]) -> None:
        row |= {"at s": round(time.monotonic() - self.start, 1)}
        self.rows.append(row)
        with self.file.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")
        print(json.dumps(row, default=str), flush=True)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the median time of a call on the device; of one call in a dry run."""
        if self.device.type == "cuda" and not self.profiled:
            from triton.testing import do_bench

            return float(do_bench(call, warmup=5, rep=5 if self.dry else 50, return_mode="median")) / 1e3
        start = time.perf_counter()
        self.profile(call)
        return time.perf_counter() - start

    def profile(self, call: Callable[[], object]) -> None:
        """Make a call that `ncu --profile-from-start off` records; on a device it is made once before, to compile."""
        if self.device.type != "cuda":
            call()
            return
        call()
        torch.cuda.synchronize()
        with torch.cuda.profiler.profile():
            call()
            torch.cuda.synchronize()

    def engine(
        self,
        name: str,
        *,
        max_running: int,
        graphs: bool = True,
        quantize: str | None = None,
        kv: str = "bf16",
        keys: int = 1024,
        context_length: int = 8192,
    ) -> ForwardEngine:
        """Return an engine of a dummy model, with pages for `max_running` rows of `keys` keys and some more."""
        config = config_of(name, tiny=self.dry)
        ops = for_device(self.device, "triton", attention_cap=config.attention_cap)
        context_length = min(context_length, config.context_length)
        model = dummy_model(config, self.device, self.dtype, ops, quantize=quantize, context_length=context_length)
        kv_dtype = self.dtype if kv == "bf16" else KV_DTYPES[kv]
        scales = None
        if kv_dtype.itemsize == 1:
            ones_LK = torch.full((config.num_layers, config.num_kv_heads), 0.05, device=self.device)
            scales = KvScales(ones_LK, ones_LK)
        num_pages = max_running * pages_of_row(keys)
        pool = KvPool(KvMemory(config, num_pages, device=self.device, dtype=kv_dtype), None, scales)
        for memory in pool.memories:
            memory.view(torch.uint8).zero_()
        made = None
        if graphs and StepGraphs.supports(model, pool.layers):
            largest = LargestStep(max_running, context_length, max_tokens=16 if self.dry else 256)
            made = StepGraphs(model, pool, largest, self.capture)
        parts = EngineParts(model, pool, graphs=made)
        engine = ForwardEngine(parts, context_length=context_length, max_running=max_running)
        if self.device.type == "cuda":
            engine.warm_up()
        elif made is not None:
            with torch.inference_mode():
                made.capture_all()
        return engine
