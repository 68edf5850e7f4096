"""The memory of keys and values: a fixed number of pages, one tensor of each for all layers.

Legend: L layers, S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..models.config import ModelConfig
from ..models.decoder import KvLayer
from ..scheduler.plan import PageCopy

PAGE_SIZE = 16  # slots


def bytes_per_page(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a page's keys and values in all layers."""
    return 2 * config.num_layers * PAGE_SIZE * config.num_kv_heads * config.head_dim * dtype.itemsize


class KvPool:
    """Slot s of page p is `p * PAGE_SIZE + s`. Contents are undefined until written."""

    def __init__(self, config: ModelConfig, num_pages: int, *, device: torch.device, dtype: torch.dtype) -> None:
        shape = (config.num_layers, num_pages * PAGE_SIZE, config.num_kv_heads, config.head_dim)
        self.num_pages = num_pages
        self.k_LSKD = torch.empty(shape, device=device, dtype=dtype)
        self.v_LSKD = torch.empty(shape, device=device, dtype=dtype)
        self.layers: tuple[KvLayer, ...] = tuple(zip(self.k_LSKD.unbind(), self.v_LSKD.unbind(), strict=True))

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do the copies one after the other: a page may be one's target and a later one's source."""
        for copy in copies:
            target, source = copy.target * PAGE_SIZE, copy.source * PAGE_SIZE
            for tensor in (self.k_LSKD, self.v_LSKD):
                tensor[:, target : target + copy.num_tokens] = tensor[:, source : source + copy.num_tokens]
