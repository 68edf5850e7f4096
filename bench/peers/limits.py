"""The machine's limits, measured, and the least time that they leave a load: reading the weights, and multiplying.

Limits of all cores together, in the process's own threads. They hold on a quiet machine only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from threading import Barrier

import numba
import numpy as np
import torch
import transformers

from ramiform.bench.peers.load import Run, Scenario
from ramiform.runtime.engine.kv_pool import PAGE_SIZE
from ramiform.runtime.scheduler.plan import Row

SUMS = 96  # float32: twelve vectors of AVX2, which stay in registers
REPEAT = 5
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Machine:
    """Bytes a second that all cores read from memory; FLOP/s of float32 FMAs, and of torch's product in a dtype."""

    read: float
    fma: float
    product: float

    @property
    def flops(self) -> float:
        return max(self.fma, self.product)

    def __str__(self) -> str:
        return (
            f"Limits of this machine, measured in this run: reading {self.read / 1e9:.1f} GB/s, float32 FMA "
            f"{self.fma / 1e9:.0f} GFLOP/s, torch's product {self.product / 1e9:.0f} GFLOP/s"
        )


@dataclass(frozen=True)
class Work:
    """Least cost of a model's tokens. Parameters of its layers and head; bytes of its weights and of a token's
    keys and values; `attention` is the FLOP of one token for each key that it sees. `kv_layer` are the parameters of
    one layer's keys and values."""

    layers: int
    head: int
    weight_bytes: int
    kv_bytes: int
    attention: int
    num_layers: int = 1
    kv_layer: int = 0

    @classmethod
    def of(cls, folder: Path, weights: Path, dtype: torch.dtype) -> Work:
        """Return the work of a dense Qwen2 or Llama with a tied head. `weights` is the file that is served."""
        config = transformers.AutoConfig.from_pretrained(folder)
        E, layers = config.hidden_size, config.num_hidden_layers
        D = E // config.num_attention_heads
        width = config.num_attention_heads * D
        kv_width = config.num_key_value_heads * D
        per_layer = 2 * E * width + 2 * E * kv_width + 3 * E * config.intermediate_size
        return cls(
            layers=layers * per_layer,
            head=config.vocab_size * E,
            weight_bytes=weights.stat().st_size,
            kv_bytes=2 * layers * kv_width * dtype.itemsize,
            attention=4 * layers * width,
            num_layers=layers,
            kv_layer=2 * E * kv_width,
        )

    def least_seconds(self, scenario: Scenario, machine: Machine) -> float:
        """Return the least time of a scenario: each step at the limit of its products or of its reading.

        A shared prefix is computed once; all prompts are one step.
        """
        N, shared = scenario.num_requests, scenario.num_shared
        own = scenario.prompt_tokens - shared
        keys = shared * shared // 2 + N * (own * shared + own * own // 2)
        prefill = self._flops(shared + N * own, keys, N, N * scenario.prompt_tokens)
        seconds = max(prefill / machine.flops, self.weight_bytes / machine.read)
        for length in range(scenario.prompt_tokens + 1, scenario.prompt_tokens + scenario.output_tokens):
            flops = self._flops(N, N * length, N, N * length)
            num_bytes = self.weight_bytes + self.kv_bytes * (shared + N * (length - shared))
            seconds += max(flops / machine.flops, num_bytes / machine.read)
        return seconds

    def least_seconds_of(
        self, sequences: Sequence[list[int]], num_outputs: int, num_serial: int, machine: Machine
    ) -> float:
        """Return the least time to compute token sequences, each common prefix once, of which `num_outputs` tokens
        are sampled: those that see the fewest keys, as far as this knows. Each of the `num_serial` tokens of a chain
        needs a step that reads the weights."""
        seen, before = list[int](), list[int]()
        for tokens in sorted(sequences):
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, tokens, strict=False)))
            seen += range(common + 1, len(tokens) + 1)
            before = tokens
        flops = self._flops(len(seen), sum(seen), num_outputs, sum(sorted(seen)[:num_outputs]))
        return max(flops / machine.flops, num_serial * self.weight_bytes / machine.read)

    def step_flops(self, rows: Sequence[Row]) -> int:
        """Return the least floating-point operations of a step."""
        tokens = keys = sampled = sampled_keys = 0
        for row in rows:
            seen = [position + 1 for position in row.position_ids]
            tokens, keys = tokens + len(seen), keys + sum(seen)
            if row.sample is not None:
                needed = seen[row.num_committed - 1 :]  # the last token, and the draft's
                sampled, sampled_keys = sampled + len(needed), sampled_keys + sum(needed)
        return self._flops(tokens, keys, sampled, sampled_keys)

    def _flops(self, tokens: int, keys: int, sampled: int, sampled_keys: int) -> int:
        """Return the least floating-point operations of tokens that see `keys` keys in sum.

        In the last layer all need keys and values, and only the `sampled` ones, after which a token is sampled, the
        rest and the head.
        """
        last, last_attention = self.layers // self.num_layers - self.kv_layer, self.attention // self.num_layers
        products = 2 * (self.layers - last) * tokens + 2 * (last + self.head) * sampled
        return products + (self.attention - last_attention) * keys + last_attention * sampled_keys

    def step_bytes(self, rows: Sequence[Row]) -> int:
        """Return the bytes that a step reads at least: the weights, and the keys and values that were there before it,
        once for all rows that see a page."""
        filled: dict[int, int] = {}  # tokens of each page
        for row in rows:
            for index, begin in enumerate(range(0, row.first_position, PAGE_SIZE)):
                page, num = row.pages[index], min(PAGE_SIZE, row.first_position - begin)
                filled[page] = max(num, filled.get(page, 0))
        return self.weight_bytes + self.kv_bytes * sum(filled.values())

    def touched_bytes(self, steps: Iterable[Sequence[Row]]) -> int:
        """Return the bytes of the weights and of all pages of these steps."""
        pages = {page for rows in steps for row in rows for page in row.pages}
        return self.weight_bytes + self.kv_bytes * PAGE_SIZE * len(pages)

    def limit(self, scenario: Scenario, machine: Machine) -> Run:
        """Return the run that would meet the limits."""
        seconds = self.least_seconds(scenario, machine)
        return Run(scenario, seconds, seconds, 0.0)


def third_cache_bytes(caches: Path = CACHES) -> int:
    """Return the size of the first core's third cache; 0: there is none, or the system does not say."""
    for folder in caches.glob("index*"):
        if (folder / "level").read_text().strip() == "3":
            return int((folder / "size").read_text().strip().removesuffix("K")) << 10
    return 0


@numba.njit(nogil=True)
def _read(numbers: np.ndarray) -> int:
    total = 0
    for index in range(numbers.size):
        total += numbers[index]
    return total


@numba.njit(nogil=True, fastmath=True)
def _multiply_add(count: int) -> np.ndarray:
    factor, term = np.float32(0.999), np.float32(1)
    sums = np.zeros(SUMS, np.float32)
    for _ in range(count):
        for index in range(SUMS):
            sums[index] = sums[index] * factor + term
    return sums


def measure_machine(dtype: torch.dtype) -> Machine:
    """Measure the limits of all cores together; the best of a few times."""
    cores = len(os.sched_getaffinity(0))
    numbers = [np.ones(1 << 25, dtype=np.int64) for _ in range(cores)]
    read = _best(cores, lambda core: _read(numbers[core]))
    count = 500_000
    fma = _best(cores, lambda core: _multiply_add(count))
    size = 2048
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    product = _best(1, lambda core: torch.nn.functional.linear(a, b))
    return Machine(
        read=sum(each.nbytes for each in numbers) / read,
        fma=2 * SUMS * count * cores / fma,
        product=2 * size**3 / product,
    )


def _best(threads: int, run: Callable[[int], object]) -> float:
    """Return the least seconds from the first thread's begin to the last one's end, of a few times.

    The threads read the clock themselves: one that watched them might wake after they had begun.
    """
    together = Barrier(threads)

    def in_step(thread: int) -> list[tuple[float, float]]:
        run(thread)  # compiles, and touches the memory
        spans = []
        for _ in range(REPEAT):
            together.wait()
            begin = time.perf_counter()
            run(thread)
            spans.append((begin, time.perf_counter()))
        return spans

    with ThreadPoolExecutor(threads) as pool:
        by_thread = list(pool.map(in_step, range(threads)))
    rounds = zip(*by_thread, strict=True)
    seconds: list[float] = [max(end for _, end in spans) - min(begin for begin, _ in spans) for spans in rounds]
    return min(seconds)
