"""What a layer remembers: the keys and values of every slot, and what their numbers stand for. Knows no pages, and
nothing of who computes with them: the plain torch and the kernels of every device share this value.

Legend: S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KvCache:
    """A layer's keys and values. Quantised ones times their head's scale are the values meant; of others the scales
    are None."""

    k_SKD: torch.Tensor
    v_SKD: torch.Tensor
    k_scale_K: torch.Tensor | None = None  # float32
    v_scale_K: torch.Tensor | None = None

    def heads(self, part: slice) -> KvCache:
        """Some of the heads: views, whose slots are not neighbours."""
        k_scale_k, v_scale_k = (
            None if scale_K is None else scale_K[part] for scale_K in (self.k_scale_K, self.v_scale_K)
        )
        return KvCache(self.k_SKD[:, part], self.v_SKD[:, part], k_scale_k, v_scale_k)
