"""Hybrid families whose layers have other parts than a mixer and an MLP of Llama's names."""

from __future__ import annotations

from ..experts_config import NEMOTRON_H_MOE
from ..recurrent.config import LFM2, NEMOTRON_H
from .row import Family, Flag

_LFM2_NAMES = (
    (r"\.operator_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"^model\.embedding_norm\.", "model.norm."),
    (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
    (r"\.conv\.conv\.", ".conv.conv1d."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
)

_NEMOTRON_H_NAMES = (
    (r"^backbone\.", "model."),
    (r"^model\.embeddings\.", "model.embed_tokens."),
    (r"^model\.norm_f\.", "model.norm."),
    (r"\.mixer\.(in_proj|conv1d|A_log|dt_bias|D|norm|out_proj)\b", r".mamba.\1"),
    (r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."),
    (r"\.mixer\.((up|down|fc1_latent|fc2_latent)_proj|gate|experts|shared_experts)\.", r".mlp.\1."),
)

OF_OTHER_PARTS = {
    "Lfm2ForCausalLM": Family(
        qk_norm="per head",
        recurrent=LFM2,
        activation_field=None,
        norm_eps_field="norm_eps",
        tied_embeddings=True,
        rounded_mlp_size=True,
        renames=_LFM2_NAMES,
        aliases={"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
        defaults={"norm_eps": 1e-5, "rope_theta": 1e6},
    ),
    "NemotronHForCausalLM": Family(
        mlp_bias=Flag("mlp_bias"),
        activations=("relu2",),
        activation_field="mlp_hidden_act",
        mlp_names=("up_proj", "down_proj"),
        norm_placement="one",
        norm_eps_field="layer_norm_epsilon",
        recurrent=NEMOTRON_H,
        experts=NEMOTRON_H_MOE,
        default_head_dim=128,
        rope_switch_field="position_embedding_type",
        renames=_NEMOTRON_H_NAMES,
        skipped=r"mtp\.",
        aliases={
            "mamba_n_heads": "mamba_num_heads",
            "mamba_d_head": "mamba_head_dim",
            "mamba_d_state": "ssm_state_size",
            "mamba_n_groups": "n_groups",
            "mamba_d_conv": "conv_kernel",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_proj_bias": "use_bias",
        },
        defaults={
            "layer_norm_epsilon": 1e-5,
            "mamba_num_heads": 128,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
        },
        required={"mamba_hidden_act": "silu", "sliding_window": None},
    ),
}
