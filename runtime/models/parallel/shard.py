"""Shards: a rank's slices of heads, MLP columns and vocabulary rows.

A model is cut into `num_slices` equal slices, and a rank holds neighbouring ones. With as many slices as ranks that is
the tensor parallelism of Megatron-LM (Shoeybi et al. 2019, section 3). When the number of slices does not depend on the
number of ranks, neither do the results: every product has the same shape on any rank, and partial sums are added in the
same order (`group.tree_sum`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...protocol.errors import RequestError
from ..config import ModelConfig

_EXPERTS_SIZE = "the experts' intermediate_size"
CANONICAL_SLICE_COUNTS = (8, 4, 2, 1)  # of ordered shards, the best first


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part of every layer."""

    rank: int = 0
    size: int = 1  # ranks
    num_slices: int = 1  # of the whole model; `size` divides it
    ordered: bool = False  # slices and the bits of sums do not depend on the number of ranks
    whole_experts: bool = False  # a rank holds some experts of a mixture whole, not a slice of each

    @property
    def slices(self) -> range:
        """Slices of this rank."""
        each = self.num_slices // self.size
        return range(self.rank * each, (self.rank + 1) * each)

    def experts(self, num_experts: int) -> range:
        """Return the experts of this rank, with `whole_experts`: as many as others have, or one more."""
        return range(self.rank * num_experts // self.size, (self.rank + 1) * num_experts // self.size)

    def heads(self, config: ModelConfig) -> int:
        """Return the number of query heads of this rank."""
        return config.num_heads // self.size

    def kv_heads(self, config: ModelConfig) -> int:
        """Return the number of key/value heads of this rank. With fewer heads than ranks, several ranks hold the same
        one."""
        return max(1, config.num_kv_heads // self.size)

    def kv_part(self, config: ModelConfig) -> slice:
        """Return the range of this rank's key/value heads among the model's."""
        start, count = self.rank * config.num_kv_heads // self.size, self.kv_heads(config)
        return slice(start, start + count)

    def heads_of_slices(self, config: ModelConfig) -> list[tuple[slice, slice]]:
        """Return the ranges of query heads and of key/value heads of each slice, within this rank's."""
        num_heads, num_kv = config.num_heads // self.num_slices, max(1, config.num_kv_heads // self.num_slices)
        first = self.kv_part(config).start
        found = []
        for place, index in enumerate(self.slices):
            kv = index * config.num_kv_heads // self.num_slices - first
            found.append((slice(place * num_heads, (place + 1) * num_heads), slice(kv, kv + num_kv)))
        return found

    def local(self, config: ModelConfig) -> ModelConfig:
        """Return the config with the heads of this rank; whatever is whole on every rank is unchanged."""
        return replace(config, num_heads=self.heads(config), num_kv_heads=self.kv_heads(config))


def shard_of(config: ModelConfig, *, rank: int, size: int, ordered: bool, whole_experts: bool = False) -> Shard:
    """Return the shard of rank `rank` of `size`. `ordered` cuts into slices whose number does not depend on `size`;
    `whole_experts` divides the experts of mixtures among the ranks (expert parallelism).

    Raises RequestError, naming tp or ep, when the model cannot be divided.
    """
    if whole_experts:
        num_experts = 0 if config.experts is None else config.experts.num_experts
        if num_experts < size:
            raise RequestError(f"ep {size} does not fit the model: it has {num_experts} experts a layer", param="ep")
        if ordered:
            raise RequestError("ep adds experts in another order than one rank: not with deterministic", param="ep")
    problem = why_indivisible(config, size, whole_experts=whole_experts)
    if problem is not None:
        raise RequestError(f"tp {size} does not fit the model: {problem}", param="tp")
    if not ordered:
        return Shard(rank, size, size, whole_experts=whole_experts)
    num_slices = next(count for count in CANONICAL_SLICE_COUNTS if why_indivisible(config, count) is None)
    if num_slices % size:
        raise RequestError(
            f"tp {size} does not fit deterministic: the model is computed in {num_slices} slices, "
            "which the ranks must divide evenly",
            param="tp",
        )
    return Shard(rank, size, num_slices, ordered=True)


def why_indivisible(config: ModelConfig, count: int, *, whole_experts: bool = False) -> str | None:
    """Return the reason why the model cannot be cut into `count` equal slices, its experts too or but for them; None
    when it can."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % count:
        return f"num_attention_heads {heads} is not divisible by it"
    if kv_heads % count and count % kv_heads:
        return f"num_key_value_heads {kv_heads} is neither a multiple nor a divisor of it"
    if config.recurrent is not None and count > 1:
        return "its recurrent layers are not divided"
    if config.qk_norm == "all heads" and count > 1:
        return "its queries are normalised over all heads, which one rank must hold"
    if config.qk_norm == "layer norm per head" and count > 1:
        return "its heads have norms of their own, which are not divided"
    if config.head_bias and count > 1:
        return "its head has a bias, which is not divided"
    for name, size in mlp_sizes(config).items():
        if size % count and not (whole_experts and name == _EXPERTS_SIZE):
            return f"{name} {size} is not divisible by it"
    return None


def mlp_sizes(config: ModelConfig) -> dict[str, int]:
    """Return the inner sizes of the model's MLPs, by their names in messages."""
    experts = config.experts
    sizes = {}
    if experts is None or not all(experts.layers):
        sizes["intermediate_size"] = config.intermediate_size
    if experts is not None:
        sizes[_EXPERTS_SIZE] = experts.intermediate_size
        if experts.shared_size is not None:
            sizes["shared_expert_intermediate_size"] = experts.shared_size
    return sizes
