"""A layer's KV cache: keys and values by slot, and the scales of quantised ones.

Legend: S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .reference.quantise import PACKED_INT4, SCALE_BYTES


@dataclass(frozen=True)
class KvCache:
    """Keys and values of one layer. In a cache with scales a code times its head's scale is the number it stands for.

    A cache of four-bit codes (uint8) has the bytes of `reference.quantise.pack_int4` in place of D numbers. A key that
    is unpacked and rotated back has to be multiplied by its channel's scale, a value by none.

    With latent attention `v_SKD` is a view of the first dimensions of `k_SKD`, and the scales are the same.
    """

    k_SKD: torch.Tensor
    v_SKD: torch.Tensor
    k_scale_K: torch.Tensor | None = None  # float32; of four-bit codes [K, D], powers of two
    v_scale_K: torch.Tensor | None = None

    @property
    def is_latent(self) -> bool:
        """True if values are a part of the keys."""
        return self.v_SKD.shape[2] != self.k_SKD.shape[2]

    @property
    def head_dim(self) -> int:
        """D, whatever the format."""
        size = self.k_SKD.shape[2]
        return 2 * (size - SCALE_BYTES) if self.k_SKD.dtype == PACKED_INT4 else size

    @property
    def value_dim(self) -> int:
        """Numbers of a value: D, or with latent attention those of a key that are its value."""
        return self.v_SKD.shape[2] if self.is_latent else self.head_dim

    def heads(self, part: slice) -> KvCache:
        """Return views of some heads; their slots are not contiguous in memory."""
        k_scale_k, v_scale_k = (
            None if scale_K is None else scale_K[part] for scale_K in (self.k_scale_K, self.v_scale_K)
        )
        return KvCache(self.k_SKD[:, part], self.v_SKD[:, part], k_scale_k, v_scale_k)
