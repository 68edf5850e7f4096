"""Parameter counts of a model or of one pipeline stage, from the configuration alone.

Legend: E hidden size, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Counts of parameters by how they are stored and read."""

    linear: int  # matrices and biases of the layers, which quantisation shrinks
    embedding: int  # looked up row by row
    head: int  # read whole for each token; the embedding itself when tied
    norms: int  # norms, routers and positions, which stay in 16 bits
    tied: bool
    experts: int = 0  # part of `linear` in experts; a token uses `chosen_share` of them
    chosen_share: float = 1.0

    @property
    def num_parameters(self) -> int:
        return self.linear + self.ends + self.norms

    @property
    def ends(self) -> int:
        """Parameters of embedding and head, which count once when they are tied."""
        return self.embedding if self.tied else self.embedding + self.head

    @property
    def active_linear(self) -> float:
        """Parameters of `linear` that one token is multiplied with."""
        return self.linear - self.experts * (1 - self.chosen_share)

    @property
    def num_active(self) -> float:
        """Parameters that one token is computed with."""
        return self.num_parameters - self.linear + self.active_linear


def model_size(config: ModelConfig, *, has_ends: bool = True) -> ModelSize:
    """Count the parameters of the layers of `config`, and with `has_ends` of embedding, final norm and head."""
    E, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    attention = E * (H + 2 * K) * D + H * D * E
    latent_norms = 0
    if (latent := config.latent) is not None:
        queries = H * latent.query_size
        attention = E * latent.key_size + latent.rank * H * latent.expanded_size + H * latent.value_size * E
        attention += E * queries if latent.query_rank is None else latent.query_rank * (E + queries)
        latent_norms = latent.rank + (latent.query_rank or 0)
    sinks = config.sinks * H
    biases = config.qkv_bias * (H + 2 * K) * D + config.o_bias * E
    mixture = config.experts
    num_mixtures = sum(mixture.layers) if mixture is not None else 0
    if config.output_gate:
        attention += E * H * D
    mixer = config.num_kv_layers * (attention + biases)
    small = config.num_kv_layers * (_qk_norms(config) + latent_norms + sinks)
    if (recurrent := config.recurrent) is not None:
        both = E * (recurrent.projected + recurrent.inner)
        both += recurrent.projection_bias * recurrent.projected + recurrent.output_bias * E
        mixer += recurrent.num_layers * both
        small += recurrent.num_layers * recurrent.num_own_parameters
    inner = len(config.mlp_names) - 1  # matrices from E to the intermediate size
    dense = (inner + 1) * E * config.intermediate_size + config.mlp_bias * (inner * config.intermediate_size + E)
    experts = shared = routers = 0
    if mixture is not None:
        matrices, width = mixture.num_matrices, mixture.latent_size or E
        own_biases = mixture.biases * (2 * mixture.intermediate_size + E)
        each = matrices * width * mixture.intermediate_size + own_biases
        experts = num_mixtures * mixture.num_experts * each
        shared = num_mixtures * matrices * E * (mixture.shared_size or 0)
        if mixture.latent_size is not None:
            shared += num_mixtures * 2 * E * mixture.latent_size
        if not mixture.names.gate and config.mlp_bias:  # of the products beside the experts
            shared += num_mixtures * sum(size + E for size in (mixture.shared_size, mixture.latent_size) if size)
        routers = num_mixtures * E * (mixture.num_experts + mixture.has_shared_gate)
        routers += num_mixtures * mixture.num_experts * mixture.biases
        routers += num_mixtures * mixture.num_experts * mixture.choice_bias
    mlps = (config.num_mlps - num_mixtures) * dense + shared + experts
    norm = E * {"layer_norm": 2, "layer_norm_plus_one": 2, "layer_norm_plain": 0}.get(config.norm, 1)
    num_norms = {"sandwich": 4, "parallel": 1, "one": 1}.get(config.norm_placement, 2)
    end = config.vocab_size * E if has_ends else 0
    others = config.head_bias * config.vocab_size
    if config.learned_positions is not None:
        others += (config.context_length + config.learned_positions) * E
    return ModelSize(
        linear=mixer + mlps,
        embedding=end,
        head=end,
        norms=config.num_layers * num_norms * norm + small + (norm + others) * has_ends + routers,
        tied=config.tied_embeddings,
        experts=experts,
        chosen_share=1.0 if mixture is None else mixture.num_per_token / mixture.num_experts,
    )


def _qk_norms(config: ModelConfig) -> int:
    """Return the parameters of a layer's norms of queries and keys."""
    heads, D = config.num_heads + config.num_kv_heads, config.head_dim
    return {
        None: 0,
        "without weights": 0,
        "per head after rope": 2 * D,
        "per head": 2 * D,
        "all heads": heads * D,
        "layer norm per head": heads * D,
    }[config.qk_norm]
