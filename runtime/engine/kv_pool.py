"""KV memory: a fixed number of pages, with one tensor of keys and one of values for all layers.

Legend: L layers, S slots, K key/value heads, D head size, P pages, B bytes of one head's numbers in a slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from ...kernels import PACKED_INT4, QUANTISED_MAX, KvCache, stored_size
from ...kernels.huge_pages import give_back, zeros_in_huge_pages
from ..models.config import ModelConfig
from ..models.experts.routes import ExpertRoutes
from ..models.stored.kv_scales import KvConstants, KvScales, KvStatistics, adopted
from ..protocol.config import PAGE_SIZE as PAGE_SIZE
from ..scheduler.plan import PageCopy


def bytes_per_page(config: ModelConfig, dtype: torch.dtype, *, is_scaled: bool = False) -> int:
    """Return the bytes of a page's keys and values in all layers; `is_scaled` as of `KvMemory`."""
    head_bytes = stored_size(config.head_dim, dtype, is_scaled=is_scaled) * dtype.itemsize
    return config.num_kv_parts * config.num_kv_layers * PAGE_SIZE * config.num_kv_heads * head_bytes


@dataclass(frozen=True)
class KvShape:
    """Shape of the whole model's pages, all ranks together, and a digest of the scales or statistics of quantised ones
    ("none": there are none)."""

    num_layers: int
    num_kv_heads: int
    head_bytes: int  # of one head's keys, or values, in a slot
    scales: str
    num_parts: int = 2  # keys and values; 1: keys alone, of which values are a part

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of a page as bytes: keys before values, layers, slots, heads, bytes."""
        return self.num_parts, self.num_layers, PAGE_SIZE, self.num_kv_heads, self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page's keys and values in all layers and heads."""
        return self.num_parts * self.num_layers * PAGE_SIZE * self.num_kv_heads * self.head_bytes


class KvMemory:
    """Pages of keys and values on one device. Slot s of page p is `p * PAGE_SIZE + s`. Contents are undefined until
    written. `dtype` may differ from the model's; int8, e4m3 and four-bit codes (uint8) need scales, or if codes have
    scales of their own (`is_scaled`, four bits always) statistics.

    With latent attention values are the first dimensions of keys: `v_LSKD` is a view, and `parts` are the keys alone.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_pages: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        is_scaled: bool = False,
        pinned: bool = False,
        num_layers: int | None = None,
    ) -> None:
        """`pinned` host memory is copied from and to a CUDA device without waiting. `num_layers` None: all layers with
        keys and values."""
        self.is_scaled = is_scaled or dtype == PACKED_INT4
        head_size = stored_size(config.head_dim, dtype, is_scaled=is_scaled)
        num_layers = config.num_kv_layers if num_layers is None else num_layers
        shape = (num_layers, num_pages * PAGE_SIZE, config.num_kv_heads, head_size)
        self.num_pages = num_pages
        self.k_LSKD = _allocate(shape, device, dtype, pinned=pinned)
        self.parts: tuple[torch.Tensor, ...] = (self.k_LSKD,)  # [L, S, ...] each
        if config.latent is not None:
            self.v_LSKD = self.k_LSKD[..., : config.latent.rank]
        else:
            self.v_LSKD = _allocate(shape, device, dtype, pinned=pinned)
            self.parts += (self.v_LSKD,)

    def layers(self, constants: KvConstants | None = None) -> tuple[KvCache, ...]:
        """Return the KV cache of each layer."""
        is_static = self.k_LSKD.dtype in QUANTISED_MAX and not self.is_scaled
        assert isinstance(constants, KvStatistics) == self.is_scaled, "codes with scales of their own need statistics"
        assert isinstance(constants, KvScales) == is_static, "codes without scales of their own need scales"
        if constants is None:
            return tuple(map(KvCache, self.k_LSKD.unbind(), self.v_LSKD.unbind()))
        if isinstance(constants, KvScales) and len(self.parts) == 1:
            constants = KvScales(constants.k_LK, constants.k_LK)
        return constants.caches(self.k_LSKD, self.v_LSKD)

    def page(self, page: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a page's keys and values, [L, PAGE_SIZE, K, D] each (of four-bit codes their bytes)."""
        slots = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
        return self.k_LSKD[:, slots], self.v_LSKD[:, slots]

    def read(self, pages: Sequence[int]) -> torch.Tensor:
        """Return a copy of pages as bytes: uint8 [P, parts, L, PAGE_SIZE, K, B], keys before values."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.k_LSKD.device)
        parts = [paged.index_select(1, index) for paged in self._paged()]
        # Eight bytes at a time: a page's 16 tokens always have so many, and single bytes take three times as long.
        wide = [part.flatten(2).view(torch.int64).transpose(0, 1) for part in parts]
        return torch.stack(wide, dim=1).view(torch.uint8).unflatten(-1, parts[0].shape[2:])

    def write(self, pages: Sequence[int], bytes_P: torch.Tensor) -> None:
        """Overwrite pages with what `read` returned, here or in another memory of the same layers and heads."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.k_LSKD.device)
        for paged, part in zip(self._paged(), bytes_P.to(index.device).unbind(1), strict=True):
            paged.index_copy_(1, index, part.transpose(0, 1).contiguous())

    def _paged(self) -> list[torch.Tensor]:
        """Return keys and values as bytes, uint8 [L, P, PAGE_SIZE, K, B]."""
        return [memory_LSKD.view(torch.uint8).unflatten(1, (self.num_pages, PAGE_SIZE)) for memory_LSKD in self.parts]


class WindowMemory(NamedTuple):
    """Memory of the layers that have a window, of those with keys and values."""

    memory: KvMemory
    has_window: tuple[bool, ...]  # by layer

    def layers(self, full: KvMemory, constants: KvConstants | None) -> tuple[KvCache, ...]:
        """Return the KV cache of each layer; `full` has those of the layers without a window."""
        own = [index for index, has_window in enumerate(self.has_window) if has_window]
        others = [index for index, has_window in enumerate(self.has_window) if not has_window]
        windows = iter(self.memory.layers(None if constants is None else constants.of(own)))
        rest = iter(full.layers(None if constants is None else constants.of(others)))
        return tuple(next(windows if has_window else rest) for has_window in self.has_window)


class PageRun(NamedTuple):
    """Copy of consecutive pages to consecutive pages, the last of them up to `num_tokens` slots."""

    source: int
    target: int
    num_pages: int
    num_tokens: int

    def slots(self, first_page: int) -> slice:
        """Return the slots copied, of those that begin with page `first_page`."""
        return slice(first_page * PAGE_SIZE, (first_page + self.num_pages - 1) * PAGE_SIZE + self.num_tokens)


def page_runs(copies: Sequence[PageCopy], num_pages: int) -> list[PageRun]:
    """Join copies that are made one after the other into runs, which have the same effect. Pages from `num_pages` on
    are the host's; no run has pages of both kinds on one side."""
    runs: list[PageRun] = []
    for source, target, num_tokens in ((copy.source, copy.target, copy.num_tokens) for copy in copies):
        last = runs[-1] if runs else None
        if (
            last is not None
            and last.num_tokens == PAGE_SIZE
            and source == last.source + last.num_pages != num_pages
            and target == last.target + last.num_pages != num_pages
            and abs(source - target) > last.num_pages  # no page is both read and written
        ):
            runs[-1] = last._replace(num_pages=last.num_pages + 1, num_tokens=num_tokens)
        else:
            runs.append(PageRun(source, target, 1, num_tokens))
    return runs


def slots_of(pages: Sequence[int], start: int, end: int) -> np.ndarray:
    """Return the slots of positions [start, end) of a sequence with these pages."""
    places = np.arange(start, end)
    return np.asarray(pages, np.int64)[places // PAGE_SIZE] * PAGE_SIZE + places % PAGE_SIZE


class CopyQueue(Protocol):
    """A queue of copies beside the queue of kernels, with a mark behind the copies of each layer."""

    def begin(self) -> None:
        """Start what is queued next only after the kernels queued so far."""

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Queue a copy."""

    def mark(self, layer: int) -> None:
        """Mark the end of a layer's copies."""

    def wait(self, layer: int) -> None:
        """Start kernels that are queued next only after the layer's last mark."""


class CudaCopyQueue:
    """Copies between a device and pinned memory, on a stream of their own."""

    def __init__(self, device: torch.device, num_layers: int) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._marks = [torch.cuda.Event() for _ in range(num_layers)]  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self, layer: int) -> None:
        self._marks[layer].record(self._stream)

    def wait(self, layer: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._marks[layer])


class ArrivingLayers(Sequence[KvCache]):
    """The layers' caches; whoever takes a layer's has its kernels wait for the copies of that layer."""

    def __init__(self, layers: Sequence[KvCache], queue: CopyQueue) -> None:
        self._layers, self._queue = layers, queue

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: Any) -> Any:
        self._queue.wait(layer)
        return self._layers[layer]


class KvPool:
    """Device pages, followed by host pages: page `memory.num_pages` is the first host page. Host pages are only copied
    from and to.

    Copies from and to the host go through `queue`, layer by layer, so that the first layer is computed while others
    are copied; without one, as on a CPU, they are made at once.

    With `windows`, the layers that have a window keep their keys and values in its pages, and there is no host.
    """

    def __init__(
        self,
        memory: KvMemory,
        host: KvMemory | None = None,
        constants: KvConstants | None = None,
        queue: CopyQueue | None = None,
        windows: WindowMemory | None = None,
        routes: ExpertRoutes | None = None,
    ) -> None:
        """`routes` has the experts of the tokens in all slots, the host's included; None: they are not recorded."""
        self.num_pages = memory.num_pages
        self.num_host_pages = 0 if host is None else host.num_pages
        self.windows, self.routes = windows, routes
        self.constants = constants
        self.layers = self._layers(memory, constants)
        self.memories = memory.parts  # [L, S, ...] each
        self.dtype, self.is_scaled = memory.k_LSKD.dtype, memory.is_scaled
        self._memory = memory
        self._host = host
        self._queue = queue
        self._arriving = False  # copies were queued that no kernel waited for

    def adopt(self, constants: KvConstants) -> None:
        """Store keys and values with other scales or statistics from now on: no page has any that are still read."""
        caches = zip(self.layers, self._layers(self._memory, constants), strict=True)
        self.constants, self.layers = constants, tuple(adopted(own, other) for own, other in caches)

    def _layers(self, memory: KvMemory, constants: KvConstants | None) -> tuple[KvCache, ...]:
        return memory.layers(constants) if self.windows is None else self.windows.layers(memory, constants)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages one after the other: a page may be the target of one copy and the source of a later one."""
        if not copies:
            return
        pending: list[PageRun] = []
        runs = page_runs(copies, self.num_pages)
        if self.routes is not None:
            self.routes.copy((run.slots(run.source), run.slots(run.target)) for run in runs)
        for run in runs:
            if self._queue is not None and max(run.source, run.target) >= self.num_pages:
                pending.append(run)
                continue
            if pending:
                self._enqueue(pending)
                pending = []
            self.settle()
            for source_LSKD, target_LSKD in self._sides(run):
                target_LSKD.copy_(source_LSKD)
        if pending:
            self._enqueue(pending)

    def copy_windows(self, copies: Sequence[PageCopy]) -> None:
        """Copy window pages one after the other."""
        if self.windows is None:
            return
        for source, target, num_tokens in ((copy.source, copy.target, copy.num_tokens) for copy in copies):
            for part in self.windows.memory.parts:
                first, to = source * PAGE_SIZE, target * PAGE_SIZE
                part[:, to : to + num_tokens].copy_(part[:, first : first + num_tokens])

    @property
    def nbytes(self) -> int:
        """Bytes of all device pages."""
        parts = self.memories if self.windows is None else (*self.memories, *self.windows.memory.parts)
        return sum(part.nbytes for part in parts)

    def read(self, pages: Sequence[int]) -> torch.Tensor:
        """Return a copy of pages, all of the device or all of the host, as `KvMemory.read` does."""
        self.settle()
        memory, first = self._place(pages[0])
        if memory is self._host and self._memory.k_LSKD.is_cuda:
            torch.cuda.current_stream(self._memory.k_LSKD.device).synchronize()
        return memory.read([page - pages[0] + first for page in pages])

    def write(self, pages: Sequence[int], bytes_P: torch.Tensor) -> None:
        """Overwrite device pages, as `KvMemory.write` does."""
        self.settle()
        self._memory.write(pages, bytes_P)

    def release(self) -> None:
        """Return the memory of all pages on the CPU to the system. No page holds anything that is still read."""
        for memory in (self._memory, self._host, None if self.windows is None else self.windows.memory):
            for part in () if memory is None else memory.parts:
                give_back(part)

    def settle(self) -> None:
        """Have the kernels queued next wait for all copies."""
        if self._arriving and self._queue is not None:
            self._queue.wait(len(self.layers) - 1)  # the last layer's are the last
            self._arriving = False

    def arriving_layers(self) -> Sequence[KvCache]:
        """Return the layers' caches for a step that takes each of them in order, and has to wait for no other."""
        if not self._arriving or self._queue is None:
            return self.layers
        self._arriving = False
        return ArrivingLayers(self.layers, self._queue)

    def _enqueue(self, runs: Sequence[PageRun]) -> None:
        assert self._queue is not None
        self._queue.begin()
        sides = [side for run in runs for side in self._sides(run)]
        for layer in range(len(self.layers)):
            for source_LSKD, target_LSKD in sides:
                self._queue.copy(source_LSKD[layer], target_LSKD[layer])
            self._queue.mark(layer)
        self._arriving = True

    def _sides(self, run: PageRun) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield views of what is copied and of where to, of the keys and of the values."""
        (source, first), (target, first_target) = self._place(run.source), self._place(run.target)
        slots, target_slots = run.slots(first), run.slots(first_target)
        for source_LSKD, target_LSKD in zip(source.parts, target.parts, strict=True):
            yield source_LSKD[:, slots], target_LSKD[:, target_slots]

    def _place(self, page: int) -> tuple[KvMemory, int]:
        if page < self.num_pages:
            return self._memory, page
        assert self._host is not None
        return self._host, page - self.num_pages


def _allocate(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
    if device.type == "cpu" and not pinned:
        return zeros_in_huge_pages(shape, dtype)
    return torch.empty(shape, device=device, dtype=dtype, pin_memory=pinned)
