"""A layer's KV cache: keys and values by slot, and the scales of quantised ones.

Legend: S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KvCache:
    """Keys and values of one layer. In a quantised cache a code times its head's scale is the number it stands for;
    other caches have no scales.

    With latent attention `v_SKD` is a view of the first dimensions of `k_SKD`, and the scales are the same."""

    k_SKD: torch.Tensor
    v_SKD: torch.Tensor
    k_scale_K: torch.Tensor | None = None  # float32
    v_scale_K: torch.Tensor | None = None

    @property
    def is_latent(self) -> bool:
        """True if values are a part of the keys."""
        return self.v_SKD.shape[2] != self.k_SKD.shape[2]

    def heads(self, part: slice) -> KvCache:
        """Return views of some heads; their slots are not contiguous in memory."""
        k_scale_k, v_scale_k = (
            None if scale_K is None else scale_K[part] for scale_K in (self.k_scale_K, self.v_scale_K)
        )
        return KvCache(self.k_SKD[:, part], self.v_SKD[:, part], k_scale_k, v_scale_k)
