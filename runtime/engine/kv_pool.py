"""KV memory: a fixed number of pages, with one tensor of keys and one of values for all layers.

Legend: L layers, S slots, K key/value heads, D head size, P pages, B bytes of one head's numbers in a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...kernels import QUANTISED_MAX, KvCache
from ..models.config import ModelConfig
from ..models.kv_scales import KvScales
from ..scheduler.plan import PageCopy

PAGE_SIZE = 16  # slots


def bytes_per_page(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a page's keys and values in all layers."""
    return 2 * config.num_layers * PAGE_SIZE * config.num_kv_heads * config.head_dim * dtype.itemsize


@dataclass(frozen=True)
class KvShape:
    """Shape of the whole model's pages, all ranks together, and a digest of the scales of eight-bit ones ("none": there
    are none)."""

    num_layers: int
    num_kv_heads: int
    head_bytes: int  # of one head's keys, or values, in a slot
    scales: str

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of a page as bytes: keys before values, layers, slots, heads, bytes."""
        return 2, self.num_layers, PAGE_SIZE, self.num_kv_heads, self.head_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page's keys and values in all layers and heads."""
        return 2 * self.num_layers * PAGE_SIZE * self.num_kv_heads * self.head_bytes


class KvMemory:
    """Pages of keys and values on one device. Slot s of page p is `p * PAGE_SIZE + s`. Contents are undefined until
    written. `dtype` may differ from the model's; int8 and e4m3 need scales."""

    def __init__(self, config: ModelConfig, num_pages: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_layers, num_pages * PAGE_SIZE, config.num_kv_heads, config.head_dim)
        self.num_pages = num_pages
        self.k_LSKD = torch.empty(shape, device=device, dtype=dtype)
        self.v_LSKD = torch.empty(shape, device=device, dtype=dtype)

    def layers(self, scales: KvScales | None = None) -> tuple[KvCache, ...]:
        """Return the KV cache of each layer."""
        assert (scales is not None) == (self.k_LSKD.dtype in QUANTISED_MAX), "eight-bit caches need scales"
        if scales is None:
            return tuple(map(KvCache, self.k_LSKD.unbind(), self.v_LSKD.unbind()))
        scales = scales.to(self.k_LSKD.device)
        return tuple(map(KvCache, self.k_LSKD.unbind(), self.v_LSKD.unbind(), scales.k_LK, scales.v_LK))

    def page(self, page: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of a page's keys and values, [L, PAGE_SIZE, K, D] each."""
        slots = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
        return self.k_LSKD[:, slots], self.v_LSKD[:, slots]

    def read(self, pages: Sequence[int]) -> torch.Tensor:
        """Return a copy of pages as bytes: uint8 [P, 2, L, PAGE_SIZE, K, B], keys before values."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.k_LSKD.device)
        parts = [paged.index_select(1, index).transpose(0, 1) for paged in self._paged()]
        return torch.stack(parts, dim=1)

    def write(self, pages: Sequence[int], bytes_P: torch.Tensor) -> None:
        """Overwrite pages with what `read` returned, here or in another memory of the same layers and heads."""
        index = torch.tensor(pages, dtype=torch.int64, device=self.k_LSKD.device)
        for paged, part in zip(self._paged(), bytes_P.to(index.device).unbind(1), strict=True):
            paged.index_copy_(1, index, part.transpose(0, 1).contiguous())

    def _paged(self) -> list[torch.Tensor]:
        """Return keys and values as bytes, uint8 [L, P, PAGE_SIZE, K, B]."""
        return [
            memory_LSKD.view(torch.uint8).unflatten(1, (self.num_pages, PAGE_SIZE))
            for memory_LSKD in (self.k_LSKD, self.v_LSKD)
        ]


class KvPool:
    """Device pages, followed by host pages: page `memory.num_pages` is the first host page. Host pages are only copied
    from and to."""

    def __init__(self, memory: KvMemory, host: KvMemory | None = None, scales: KvScales | None = None) -> None:
        self.num_pages = memory.num_pages
        self.num_host_pages = 0 if host is None else host.num_pages
        self.layers = memory.layers(scales)
        self.memories = (memory.k_LSKD, memory.v_LSKD)  # [L, S, ...] each
        self.dtype = memory.k_LSKD.dtype
        self._memory = memory
        self._host = host

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages one after the other: a page may be the target of one copy and the source of a later one."""
        for copy in copies:
            for source_LSKD, target_LSKD in zip(self._page(copy.source), self._page(copy.target), strict=True):
                target_LSKD[:, : copy.num_tokens] = source_LSKD[:, : copy.num_tokens]

    def read(self, pages: Sequence[int]) -> torch.Tensor:
        """Return a copy of device pages, as `KvMemory.read` does."""
        return self._memory.read(pages)

    def write(self, pages: Sequence[int], bytes_P: torch.Tensor) -> None:
        """Overwrite device pages, as `KvMemory.write` does."""
        self._memory.write(pages, bytes_P)

    def _page(self, page: int) -> tuple[torch.Tensor, torch.Tensor]:
        if page < self.num_pages:
            return self._memory.page(page)
        assert self._host is not None
        return self._host.page(page - self.num_pages)
