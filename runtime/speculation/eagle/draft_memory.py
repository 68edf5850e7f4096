"""Memory of a head by the target's slots: its keys and values, and the features that it reads.

Slot j of a sequence holds the feature of token j, and the key and value computed from (feature of token j - 1, token
j). So a shared prefix is wholly reusable, whatever follows it.

Legend: S slots, E hidden size, C key/value heads times head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....kernels import KvCache
from ...engine.kv_pool import PAGE_SIZE
from ...scheduler.plan import PageCopy
from .config import HeadConfig

SCRATCH = 64  # slots of no page, for tokens that have no slot yet


class DraftMemory:
    """`num_pages` device pages and SCRATCH more slots; host pages are numbered from `num_pages` on.

    It starts as zeros, so that nothing read before it is written spoils a sum.
    """

    def __init__(
        self, config: HeadConfig, num_pages: int, num_host_pages: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        widths = (config.num_kv_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.hidden_size)
        self.num_pages, self.num_host_pages = num_pages, num_host_pages
        self._device, self._host = (
            [torch.zeros(slots, width, device=where, dtype=dtype) for width in widths]
            for slots, where in (
                (num_pages * PAGE_SIZE + SCRATCH, device),
                (num_host_pages * PAGE_SIZE, torch.device("cpu")),
            )
        )
        self.k_SC, self.v_SC, self.feature_SE = self._device
        heads = (-1, config.num_kv_heads, config.head_dim)
        self.kv = KvCache(self.k_SC.view(heads), self.v_SC.view(heads))

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Make the copies one after the other: a page may be one's target and a later one's source."""
        for copy in copies:
            for source, target in zip(self._page(copy.source), self._page(copy.target), strict=True):
                target[: copy.num_tokens] = source[: copy.num_tokens]

    def _page(self, page: int) -> list[torch.Tensor]:
        columns = self._device if page < self.num_pages else self._host
        start = (page if page < self.num_pages else page - self.num_pages) * PAGE_SIZE
        return [column[start : start + PAGE_SIZE] for column in columns]


def bytes_per_page(config: HeadConfig, dtype: torch.dtype) -> int:
    """Return the bytes of a head's memory for one page."""
    return (2 * config.num_kv_heads * config.head_dim + config.hidden_size) * PAGE_SIZE * dtype.itemsize
