"""Number of KV pages, from the settings or from the memory that the device has left, and of requests run at once.

On a CUDA device weights, workspaces, graphs and KV together take the part `--mem-fraction` of the device. On a CPU the
KV takes that part of the memory that is available once the weights are loaded: other programs need the rest.
"""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from ..models.decoder import Decoder
from ..models.parallel.group import Group
from ..models.stored.kv_scales import KvConstants, KvStatistics
from ..protocol.config import DEFAULT_MAX_RUNNING, CoreConfig
from ..protocol.errors import RequestError
from ..scheduler.plan import DraftNode, ForwardPlan, Row, Sample
from .in_flight_step import InFlightStep, ModelRunner
from .kv_pool import PAGE_SIZE, KvMemory, KvPool
from .paths.step_graphs import StepGraphs

logger = logging.getLogger("ramiform.engine")

DEFAULT_FRACTIONS = {"cuda": 0.9, "cpu": 0.25}
MAX_RUNNING_ON_CUDA = 256  # requests, where max_running is not set
_TOKENS_OF_A_REQUEST = 1024  # assumed to choose max_running: more requests than fit would be retracted again and again
_MIN_PAGES = 4
_MEASURED_GRAPHS = 3  # the largest, of decode steps with and without shared keys and of any rows; others reuse memory
_BYTES_OF_A_GRAPH = 4 << 20  # that graphs do not share: their nodes' parameters; assumed
_GIB = 1 << 30


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a device at start, measured after a step of the largest size and the capture of its largest graphs."""

    total: int
    free: int  # now, with weights and what the libraries keep
    transient: int  # of the largest step, and not taken now
    graphs: int  # of all graphs, estimated from the largest ones

    def left(self, fraction: float) -> int:
        """Return the bytes that KV may take if all together take `fraction` of the device."""
        return int(self.free - (1 - fraction) * self.total) - self.transient - self.graphs


class MakeGraphs(Protocol):
    """Constructor of the graphs of a model that keeps its KV in `pool`."""

    def __call__(self, pool: KvPool, *, max_rows: int) -> StepGraphs: ...


def measure_memory(
    model: Decoder,
    kv_dtype: torch.dtype,
    constants: KvConstants | None,
    group: Group,
    *,
    num_tokens: int,
    num_rows: int,
    num_drafts: int = 0,
    make_graphs: MakeGraphs | None,
) -> MemoryUse:
    """Measure a CUDA device: run a step of `num_tokens` tokens, all of whose `num_rows` rows sample and verify at most
    `num_drafts` tokens, and capture the largest graphs (None: there are none), on a small pool that is then freed."""
    device = model.device
    num_pages, is_scaled = num_tokens // PAGE_SIZE + num_rows, isinstance(constants, KvStatistics)
    memory = KvMemory(model.config, num_pages, device=device, dtype=kv_dtype, is_scaled=is_scaled)
    pool = KvPool(memory, None, constants)
    plan = largest_plan(num_tokens, num_rows, num_drafts)
    with torch.inference_mode():
        InFlightStep(ModelRunner(model, pool, group), plan).wait()  # libraries load
        taken = _reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
        InFlightStep(ModelRunner(model, pool, group), plan).wait()
        transient = torch.cuda.max_memory_reserved(device) - taken
        graphs_bytes = 0
        if make_graphs is not None and StepGraphs.supports(model, pool.layers):
            before = _free(device)
            graphs = make_graphs(pool, max_rows=num_rows)
            num_captured = graphs.capture_all(most=_MEASURED_GRAPHS)
            graphs_bytes = before - _free(device) + _BYTES_OF_A_GRAPH * (len(graphs.shapes) - num_captured)
            del graphs
    del pool
    free = _free(device)
    return MemoryUse(torch.cuda.get_device_properties(device).total_memory, free, transient, graphs_bytes)


def largest_plan(num_tokens: int, num_rows: int, num_drafts: int = 0) -> ForwardPlan:
    """Return a plan of `num_rows` rows, with `num_tokens` tokens in all and pages of their own, that all draw. Of each
    row's tokens as many as may be, at most `num_drafts`, are a draft, after each of which one is drawn too."""
    draw = Sample(temperature=1.0, top_k=50, top_p=0.9, draw=5, num_top_logprobs=1)
    rows, first_page = [], 0
    for index in range(num_rows):
        count = num_tokens * (index + 1) // num_rows - num_tokens * index // num_rows
        end_page = first_page + -(-count // PAGE_SIZE)
        pages, drafts = list(range(first_page, end_page)), min(num_drafts, count - 1)
        row = Row(rid=str(index), tokens=[0] * count, first_position=0, pages=pages, sample=draw)
        if drafts:
            row = msgspec.structs.replace(row, parents=list(range(-1, drafts - 1)), nodes=[DraftNode(draw=5)] * drafts)
        rows.append(row)
        first_page = end_page
    return ForwardPlan(step=0, copies=[], rows=rows)


def _reserved(device: torch.device) -> int:
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved(device)


def _free(device: torch.device) -> int:
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


class MeasureMemory(Protocol):
    """Measurement of a CUDA device's memory with the model on it, for at most `max_running` requests."""

    def __call__(self, *, max_running: int) -> MemoryUse: ...


def pages_by_setting(config: CoreConfig, context_length: int, page: int) -> int | None:
    """Return the number of pages that `num_pages` or `kv_memory` asks for; None: neither is set.

    `page` are the bytes of one. Raises RequestError naming `kv_memory` when it cannot hold one sequence.
    """
    if config.num_pages is not None or config.kv_memory is None:
        return config.num_pages
    num_pages, needed = int(config.kv_memory * _GIB) // page, -(-context_length // PAGE_SIZE)
    if num_pages < needed:
        raise RequestError(
            f"kv_memory {config.kv_memory:g} GiB holds {num_pages * PAGE_SIZE} tokens, "
            f"a sequence may have {context_length}: "
            f"raise kv_memory to {_rounded_up(needed * page / _GIB)} or lower context_length",
            param="kv_memory",
        )
    return num_pages


def _rounded_up(number: float) -> str:
    """Write a number with three digits or more, and no smaller."""
    digits = max(2, 2 - math.floor(math.log10(number)))
    return f"{math.ceil(number * 10**digits) / 10**digits:.{digits}f}"


def pages_from_memory(
    config: CoreConfig,
    device: torch.device,
    context_length: int,
    page: int,
    *,
    num_sharing: int = 1,
    num_state_bytes: int = 0,
    measure: MeasureMemory | None = None,
) -> int:
    """Return the number of pages that fit into the device's memory, and are of use.

    `num_sharing` ranks share a CPU's memory, of which recurrent states take `num_state_bytes`; on a CUDA device they
    are there already. `measure` is for CUDA devices. No more pages are of use than `max_running`
    sequences of `context_length` tokens have. Raises RequestError naming `mem_fraction` when the memory left holds
    nothing.
    """
    fraction = config.mem_fraction or DEFAULT_FRACTIONS[device.type]
    if device.type == "cuda":
        assert measure is not None, "a CUDA device is measured"
        most_running = config.max_running or MAX_RUNNING_ON_CUDA
        use = measure(max_running=most_running)
        left = use.left(fraction)
        logger.info(
            "%s: %.1f GiB free of %.1f, a step takes %.2f and graphs %.2f more: %.1f GiB for KV",
            device,
            *(size / _GIB for size in (use.free, use.total, use.transient, use.graphs, left)),
        )
    else:
        most_running = config.max_running or DEFAULT_MAX_RUNNING
        left = int(fraction * available_memory()) // num_sharing - num_state_bytes
    needed = -(-context_length // PAGE_SIZE)
    num_pages = min(left // page, most_running * needed)
    if num_pages < _MIN_PAGES:
        raise RequestError(
            f"{max(0, left) / _GIB:.2f} GiB of {device} are left for KV with mem_fraction {fraction:g}: raise it, "
            "set kv_memory, or take a smaller model",
            param="mem_fraction",
        )
    if num_pages < needed:
        logger.warning(
            "KV memory holds %s tokens, fewer than the context of %s: longer requests are refused. "
            "Set kv_memory, or kv_dtype fp8 or int8, for more",
            f"{num_pages * PAGE_SIZE:,}",
            f"{context_length:,}",
        )
    return num_pages


def choose_max_running(config: CoreConfig, device: torch.device, num_pages: int) -> int:
    """Return how many requests run at once: as set, else on a CPU a fixed number, on a CUDA device what the pages hold
    of requests of usual length."""
    if config.max_running is not None:
        return config.max_running
    if device.type != "cuda":
        return DEFAULT_MAX_RUNNING
    held = num_pages * PAGE_SIZE // _TOKENS_OF_A_REQUEST // 8 * 8
    return max(8, min(MAX_RUNNING_ON_CUDA, held))


def available_memory() -> int:
    """Return the bytes of the host's memory that programs may still take, within the limits of control groups, as of
    containers and systemd's units."""
    left = [
        limit - used + cached
        for limit, used, cached in _groups_memory(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    ]
    return max(0, min([_available_of_host(), *left]))


def _available_of_host() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        # Without the kernel's estimate, half of the memory is assumed to be in use.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _groups_memory(memberships: Path, mount: Path) -> Iterator[tuple[int, int, int]]:
    """Yield the limit, the use, and the part of it that are files which the kernel would drop, of this process's
    control groups that have a limit, of version 2 or 1.

    A container often sees its own group as the root, whatever path `memberships` names.
    """
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    )
    try:
        lines = [line.split(":", 2) for line in memberships.read_text().splitlines()]
    except OSError:
        lines = [["0", "", "/"], ["0", "memory", "/"]]
    for _, controllers, path in lines:
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mount / "memory" if controllers else mount
        limit_name, used_name, cached_name = names[bool(controllers)]
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
            if limit is not None and used is not None:
                yield limit, used, _read_statistic(folder / "memory.stat", cached_name)
            if folder == root:
                break


def _read_statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name} "))
    except (OSError, StopIteration):
        return 0


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None
