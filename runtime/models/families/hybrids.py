"""Hybrid families whose layers have other parts than a mixer and an MLP of Llama's names."""

from __future__ import annotations

from ..experts.config import JAMBA_MOE, LFM2_MOE, NEMOTRON_H_MOE
from ..recurrent.config import FALCON_H1, JAMBA, LFM2, MAMBA2, NEMOTRON_H
from .row import Family, Flag

_LFM2_NAMES = (
    (r"\.operator_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"^model\.embedding_norm\.", "model.norm."),
    (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
    (r"\.conv\.conv\.", ".conv.conv1d."),
    (r"\.feed_forward\.", ".mlp."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
)

_NEMOTRON_H_NAMES = (
    (r"^backbone\.", "model."),
    (r"^model\.embeddings\.", "model.embed_tokens."),
    (r"^model\.norm_f\.", "model.norm."),
    (r"\.mixer\.(in_proj|conv1d|A_log|dt_bias|D|norm|out_proj)\b", r".mamba.\1"),
    (r"\.mixer\.([qkvo]_proj)\.", r".self_attn.\1."),
    (r"\.mixer\.((up|down|fc1_latent|fc2_latent)_proj|gate|experts|shared_experts)\.", r".mlp.\1."),
)

_BAMBA = Family(
    *(Flag("attention_bias"),) * 2,
    Flag("mlp_bias"),
    recurrent=MAMBA2,
    renames=(
        (r"\.feed_forward\.", ".mlp."),
        (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
        (r"^model\.final_layernorm\.", "model.norm."),
    ),
    defaults={"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5},
)
_LFM2 = Family(
    qk_norm="per head",
    recurrent=LFM2,
    activation_field=None,
    norm_eps_field="norm_eps",
    tied_embeddings=True,
    renames=_LFM2_NAMES,
    defaults={"norm_eps": 1e-5, "rope_theta": 1e6},
)

OF_OTHER_PARTS = {
    "BambaForCausalLM": _BAMBA,
    "FalconH1ForCausalLM": _BAMBA._replace(
        recurrent=FALCON_H1,
        multipliers=True,
        embedding_scale_field="embedding_multiplier",
        logit_scale_field="lm_head_multiplier",
        defaults={"rms_norm_eps": 1e-5},
        required={"attn_layer_indices": None},
    ),
    "JambaForCausalLM": Family(
        recurrent=JAMBA,
        experts=JAMBA_MOE,
        rope_switch_field="position_embedding_type",  # which Jamba's files do not have
        renames=_BAMBA.renames,
        defaults={
            "num_experts": 16,
            "num_experts_per_tok": 2,
            "expert_layer_period": 2,
            "max_position_embeddings": 262_144,
        },
        variants=(({"num_experts": 1}, {"experts": None}),),
    ),
    "Lfm2ForCausalLM": _LFM2._replace(
        rounded_mlp_size=True,
        aliases={"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
    ),
    "Lfm2MoeForCausalLM": _LFM2._replace(
        experts=LFM2_MOE,
        aliases={
            "tie_word_embeddings": "tie_embedding",
            "n_routed_experts": "num_experts",
            "first_k_dense_replace": "num_dense_layers",
        },
        defaults={**_LFM2.defaults, "num_dense_layers": 2},
        variants=(({"use_expert_bias": False}, {"experts": LFM2_MOE._replace(choice_bias=False)}),),
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
