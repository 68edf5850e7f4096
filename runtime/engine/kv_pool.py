"""KV memory: a fixed number of pages, with one tensor of keys and one of values for all layers.

Legend: L layers, S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...kernels import QUANTISED_MAX, KvCache
from ..models.config import ModelConfig
from ..models.kv_scales import KvScales
from ..scheduler.plan import PageCopy

PAGE_SIZE = 16  # slots


def bytes_per_page(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a page's keys and values in all layers."""
    return 2 * config.num_layers * PAGE_SIZE * config.num_kv_heads * config.head_dim * dtype.itemsize


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

    def _page(self, page: int) -> tuple[torch.Tensor, torch.Tensor]:
        if page < self.num_pages:
            return self._memory.page(page)
        assert self._host is not None
        return self._host.page(page - self.num_pages)
