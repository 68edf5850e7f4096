"""A layer's KV cache: keys and values by slot, and the scales of quantised ones.

Legend: S slots, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .reference.scaled_codes import KeyBasis, scaled_head_dim


@dataclass(frozen=True)
class KvCache:
    """Keys and values of one layer. In a cache with scales a code times its head's scale is the number it stands for.

    A cache with a `basis` has the bytes of `reference.scaled_codes` in place of D numbers: codes with scales of their
    own. Those of four bits (uint8) have always one.

    With latent attention `v_SKD` is a view of the first dimensions of `k_SKD`, and the scales are the same.
    """

    k_SKD: torch.Tensor
    v_SKD: torch.Tensor
    k_scale_K: torch.Tensor | None = None  # float32
    v_scale_K: torch.Tensor | None = None
    basis: KeyBasis | None = None

    @property
    def is_latent(self) -> bool:
        """True if values are a part of the keys."""
        return self.v_SKD.shape[2] != self.k_SKD.shape[2]

    @property
    def head_dim(self) -> int:
        """D, whatever the format."""
        size = self.k_SKD.shape[2]
        return size if self.basis is None else scaled_head_dim(size, self.k_SKD.dtype)

    @property
    def value_dim(self) -> int:
        """Numbers of a value: D, or with latent attention those of a key that are its value."""
        return self.v_SKD.shape[2] if self.is_latent else self.head_dim

    def heads(self, part: slice) -> KvCache:
        """Return views of some heads; their slots are not contiguous in memory."""
        k_scale_k, v_scale_k = (
            None if scale_K is None else scale_K[part] for scale_K in (self.k_scale_K, self.v_scale_K)
        )
        basis = None if self.basis is None else self.basis.heads(part)
        return KvCache(self.k_SKD[:, part], self.v_SKD[:, part], k_scale_k, v_scale_k, basis)
