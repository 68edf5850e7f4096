"""Model families as data: FAMILIES has one row for each architecture.

A row says how the decoder block is built, which fields of config.json complete it, and how its checkpoints name and lay
out tensors. `config.parse_config` reads it.
"""

from __future__ import annotations

from ..experts.config import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    ERNIE,
    GPT_OSS,
    GRANITE,
    HUNYUAN,
    LLAMA4,
    MIXTRAL,
    OLMOE,
    QWEN2_MOE,
    QWEN3_MOE,
    StackedNames,
)
from ..recurrent.config import MAMBA2, QWEN3_5, QWEN3_NEXT
from .hybrids import OF_OTHER_PARTS
from .row import FALCON_NAMES, GPT2_NAMES, GPT_NEOX_NAMES, OPT_NAMES, Family, Flag

_BIAS = Flag("attention_bias")
_LLAMA = Family(_BIAS, _BIAS, Flag("mlp_bias"))
_QWEN2 = Family(qkv_bias=True, windows="by layer")
_QWEN3 = Family(_BIAS, _BIAS, qk_norm="per head", windows="by layer", default_head_dim=128)
_QWEN3_MOE = Family(_BIAS, _BIAS, qk_norm="per head", windows="every layer if used", experts=QWEN3_MOE)
_GEMMA = Family(_BIAS, _BIAS)._replace(
    activations=("gelu_tanh",),
    activation_field=None,
    norm="rms_plus_one",
    scales_embeddings=True,
    default_head_dim=256,
    tied_embeddings=True,
    required={"use_bidirectional_attention": False},
)
_GEMMA2 = _GEMMA._replace(
    activation_field="hidden_activation",
    norm_placement="sandwich",
    windows="by layer type",
    logit_cap_field="final_logit_softcapping",
    attention_cap_field="attn_logit_softcapping",
    attention_scale_field="query_pre_attn_scalar",
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
_GEMMA3 = _GEMMA2._replace(
    qk_norm="per head",
    second_rope="own in window layers",
    defaults={
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10_000.0,
    },
)
_LANGUAGE_MODEL = (
    (r"^model\.text_model\.", "model."),
    (r"^language_model\.model\.", "model."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^model\.language_model\.", "model."),
)
_VISION = r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|connector)\."


def _text_part(family: Family, *text_types: str) -> Family:
    """Return the row of a multimodal model whose text part is of a family."""
    return family._replace(renames=_LANGUAGE_MODEL, skipped=_VISION, text_types=text_types)


_PROJECTED = "vision_tower", "multi_modal_projector"
_IDEFICS3 = _text_part(_LLAMA, "llama")._replace(tower=("vision_model", "connector"))
_OLMO2 = Family(_BIAS, _BIAS, norm_placement="post", qk_norm="all heads")
_COHERE = Family(_BIAS, _BIAS)._replace(
    norm="layer_norm_no_bias",
    norm_placement="parallel",
    norm_eps_field="layer_norm_eps",
    logit_scale_field="logit_scale",
    interleaved_rope=True,
    tied_embeddings=True,
    defaults={"logit_scale": 0.0625, "layer_norm_eps": 1e-5, "rope_theta": 10_000.0},
)
_GLM = Family(
    Flag("attention_bias", default=True),
    default_head_dim=128,
    stored_gate_up="stacked",
    interleaved_rope=True,
    defaults={"partial_rotary_factor": 0.5},
)
_DEEPSEEK = Family(
    latent=True,
    further_layers=("num_nextn_predict_layers", "num_mtp_layers"),  # they predict tokens further ahead
    required={"attention_bias": False, "mlp_bias": False},
)
_HUNYUAN = Family(_BIAS, _BIAS, qk_norm="per head after rope", defaults={"rms_norm_eps": 1e-5})
_QWEN3_NEXT = Family(
    _BIAS,
    _BIAS,
    qk_norm="per head",
    default_head_dim=256,
    norm="rms_plus_one",
    experts=QWEN2_MOE,
    recurrent=QWEN3_NEXT,
    output_gate=True,
    skipped=r"mtp\.",
    defaults={"partial_rotary_factor": 0.25, "norm_topk_prob": True},
    required={"attn_output_gate": True},
)
_QWEN3_5 = _QWEN3_NEXT._replace(recurrent=QWEN3_5, renames=_LANGUAGE_MODEL, skipped=rf"mtp\.|{_VISION}")
_SHARED_MLP = {"intermediate_size": "shared_intermediate_size"}  # without experts it is the only one
_LLAMA4 = Family(
    _BIAS,
    _BIAS,
    experts=LLAMA4,
    windows="chunks",
    second_rope="none where listed",
    interleaved_rope=True,
    query_scales=True,
    default_head_dim=128,
    renames=((r"\.feed_forward\.", ".mlp."),),
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "num_experts_per_tok": 1,
        "use_qk_norm": True,
        "attention_chunk_size": 8192,
    },
    aliases={"intermediate_size": "intermediate_size_mlp", "moe_intermediate_size": "intermediate_size"},
    variants=(({"use_qk_norm": True}, {"qk_norm": "without weights"}),),
)
_GRANITE = _LLAMA._replace(
    embedding_scale_field="embedding_multiplier",
    attention_factor_field="attention_multiplier",
    residual_scale_field="residual_multiplier",
    logit_divisor_field="logits_scaling",
    defaults={
        "embedding_multiplier": 1.0,
        "attention_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    },
)

FAMILIES = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": Family(windows="every layer"),
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "MixtralForCausalLM": Family(windows="every layer", experts=MIXTRAL),
    "Qwen2MoeForCausalLM": Family(Flag("qkv_bias", default=True), experts=QWEN2_MOE),
    "Qwen3MoeForCausalLM": _QWEN3_MOE,
    "Glm4MoeForCausalLM": Family(
        _BIAS,
        experts=DEEPSEEK_V3,
        further_layers=_DEEPSEEK.further_layers,
        defaults={"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "first_k_dense_replace": 1},
        variants=(({"use_qk_norm": True}, {"qk_norm": "per head"}),),
    ),
    "Ernie4_5_MoeForCausalLM": Family(
        experts=ERNIE,
        interleaved_rope=True,
        tied_embeddings=True,
        skipped=r"model\.mtp_",
        aliases={
            "n_routed_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_k",
            "n_shared_experts": "moe_num_shared_experts",
        },
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "moe_num_shared_experts": 2,
            "moe_layer_interval": 1,
            "moe_layer_start_index": 1,
        },
        required={"use_bias": False},
    ),
    "OlmoeForCausalLM": Family(
        _BIAS, _BIAS, qk_norm="all heads", experts=OLMOE, defaults={"rms_norm_eps": 1e-5}, required={"clip_qkv": None}
    ),
    "HunYuanDenseV1ForCausalLM": _HUNYUAN,
    "HunYuanMoEV1ForCausalLM": _HUNYUAN._replace(
        experts=HUNYUAN,
        aliases={
            "n_routed_experts": "num_experts",
            "num_experts_per_tok": "moe_topk",
            "n_shared_experts": "num_shared_expert",
        },
        defaults={"rms_norm_eps": 1e-5, "num_shared_expert": 1},
        required={"moe_layer_num_skipped": 0, "use_cla": False, "norm_topk_prob": True},
    ),
    "DeepseekV2ForCausalLM": _DEEPSEEK._replace(experts=DEEPSEEK_V2),
    "DeepseekV3ForCausalLM": _DEEPSEEK._replace(
        experts=DEEPSEEK_V3, defaults={"n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}
    ),
    "Glm4MoeLiteForCausalLM": _DEEPSEEK._replace(
        experts=DEEPSEEK_V3, defaults={"routed_scaling_factor": 1.8, "first_k_dense_replace": 1}
    ),
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA2,
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _text_part(_GEMMA3, "gemma3_text")._replace(tower=_PROJECTED),
    "Phi3ForCausalLM": Family(
        windows="every layer",
        stored_qkv="stacked",
        stored_gate_up="stacked",
        defaults={"rms_norm_eps": 1e-5},
    ),
    "OlmoForCausalLM": Family(
        _BIAS,
        _BIAS,
        norm="layer_norm_plain",
        norm_eps_field="fixed_norm_eps",
        defaults={"fixed_norm_eps": 1e-5},
        required={"clip_qkv": None},
    ),
    "Olmo2ForCausalLM": _OLMO2,
    "Olmo3ForCausalLM": _OLMO2._replace(
        windows="by layer type",
        second_rope="own in window layers",
        defaults={"sliding_window_pattern": 4, "sliding_window": 4096},
    ),
    "GraniteForCausalLM": _GRANITE,
    "GraniteMoeHybridForCausalLM": _GRANITE._replace(
        mlp_bias=False,
        recurrent=MAMBA2,
        rope_switch_field="position_embedding_type",
        experts=GRANITE,
        stored_gate_up="stacked",
        renames=(
            (r"\.shared_mlp\.input_linear\.", ".mlp.gate_up_proj."),
            (r"\.shared_mlp\.output_linear\.", ".mlp.down_proj."),
        ),
        variants=(({"num_local_experts": 0}, {"experts": None, "aliases": _SHARED_MLP}),),
    ),
    "SmolLM3ForCausalLM": _LLAMA._replace(
        windows="by layer type",
        second_rope="none where listed",
        tied_embeddings=True,
        defaults={"rope_theta": 2e6, "no_rope_layer_interval": 4},
    ),
    "GlmForCausalLM": _GLM._replace(defaults={"partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-7}),
    "Glm4ForCausalLM": _GLM._replace(
        norm_placement="sandwich",
        renames=(
            (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
            (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
            (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
        ),
    ),
    "CohereForCausalLM": _COHERE._replace(
        variants=(({"use_qk_norm": True}, {"qk_norm": "layer norm per head"}),),
    ),
    "Cohere2ForCausalLM": _COHERE._replace(
        windows="by layer type",
        second_rope="none in full layers",
        defaults={**_COHERE.defaults, "sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    "Starcoder2ForCausalLM": Family(
        *(Flag("use_bias", default=True),) * 3,
        activations=("gelu_tanh", "gelu"),
        mlp_names=("c_fc", "c_proj"),
        norm="layer_norm",
        norm_eps_field="norm_epsilon",
        windows="every layer",
        tied_embeddings=True,
        defaults={"norm_epsilon": 1e-5},
    ),
    "StableLmForCausalLM": Family(
        Flag("use_qkv_bias"),
        norm="layer_norm",
        norm_eps_field="layer_norm_eps",
        defaults={"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5},
        required={"qk_layernorm": False, "use_parallel_residual": False},
    ),
    "FalconForCausalLM": Family(
        *(Flag("bias"),) * 3,
        activations=("gelu", "gelu_tanh", "relu"),
        activation_field="activation",
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        norm="layer_norm",
        norm_placement="parallel",
        norm_eps_field="layer_norm_epsilon",
        stored_qkv="stacked",
        tied_embeddings=True,
        renames=FALCON_NAMES,
        aliases={"intermediate_size": "ffn_hidden_size"},
        defaults={
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "layer_norm_epsilon": 1e-5,
            "multi_query": True,
            "parallel_attn": True,
            "num_ln_in_parallel_attn": 2,
        },
        required={"alibi": False},
        variants=(
            (
                {"multi_query": False},
                {
                    "stored_qkv": "by group",
                    "aliases": {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_attention_heads"},
                },
            ),
            ({"parallel_attn": False}, {"norm_placement": "pre"}),
            (
                {"new_decoder_architecture": True},
                {
                    "stored_qkv": "by group",
                    "norm_placement": "parallel, two norms",
                    "aliases": {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"},
                },
            ),
            (
                {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
                {"norm_placement": "parallel"},
            ),
        ),
    ),
    "PhiForCausalLM": Family(
        *(True,) * 3,
        activations=("gelu_tanh", "gelu"),
        mlp_names=("fc1", "fc2"),
        norm="layer_norm",
        norm_placement="parallel",
        norm_eps_field="layer_norm_eps",
        head_bias=True,
        renames=((r"\.self_attn\.dense\.", ".self_attn.o_proj."), (r"^model\.final_layernorm\.", "model.norm.")),
        defaults={"partial_rotary_factor": 0.5, "layer_norm_eps": 1e-5},
        required={"qk_layernorm": False},
    ),
    "GPTNeoXForCausalLM": Family(
        *(Flag("attention_bias", default=True),) * 2,
        True,
        activations=("gelu", "gelu_tanh"),
        mlp_names=("dense_h_to_4h", "dense_4h_to_h"),
        norm="layer_norm",
        norm_placement="parallel, two norms",
        norm_eps_field="layer_norm_eps",
        stored_qkv="by group",
        rotary_field="rotary_pct",
        renames=GPT_NEOX_NAMES,
        defaults={"rotary_pct": 0.25, "rotary_emb_base": 10_000.0, "layer_norm_eps": 1e-5},
        aliases={"rope_theta": "rotary_emb_base"},
        variants=(({"use_parallel_residual": False}, {"norm_placement": "pre"}),),
    ),
    "GPT2LMHeadModel": Family(
        *(True,) * 3,
        activations=("gelu_tanh", "gelu", "relu"),
        activation_field="activation_function",
        mlp_names=("c_fc", "c_proj"),
        norm="layer_norm",
        norm_eps_field="layer_norm_epsilon",
        stored_qkv="stacked",
        transposed=True,
        learned_positions=0,
        second_rope=None,
        tied_embeddings=True,
        renames=GPT2_NAMES,
        skipped=r"model\.layers\.\d+\.attn\.(masked_)?bias$",
        aliases={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "intermediate_size": "n_inner",
        },
        defaults={"layer_norm_epsilon": 1e-5},
        required={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "OPTForCausalLM": Family(
        *(Flag("enable_bias", default=True),) * 3,
        activations=("relu", "gelu"),
        activation_field="activation_function",
        mlp_names=("fc1", "fc2"),
        norm="layer_norm",
        norm_eps_field="fixed_norm_eps",
        learned_positions=2,
        tied_embeddings=True,
        renames=OPT_NAMES,
        aliases={"intermediate_size": "ffn_dim"},
        defaults={"fixed_norm_eps": 1e-5},
        required={
            "do_layer_norm_before": True,
            "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
    ),
    "NemotronForCausalLM": _LLAMA._replace(
        activations=("relu2",),
        mlp_names=("up_proj", "down_proj"),
        norm="layer_norm_plus_one",
        norm_eps_field="norm_eps",
        defaults={"partial_rotary_factor": 0.5, "norm_eps": 1e-5},
    ),
    "ArceeForCausalLM": _LLAMA._replace(
        activations=("relu2",), mlp_names=("up_proj", "down_proj"), defaults={"rms_norm_eps": 1e-5}
    ),
    "SeedOssForCausalLM": _LLAMA._replace(
        qkv_bias=Flag("attention_bias", default=True), o_bias=Flag("attention_out_bias"), default_head_dim=128
    ),
    "Ernie4_5ForCausalLM": Family(
        *(Flag("use_bias"),) * 3,
        default_head_dim=128,
        interleaved_rope=True,
        tied_embeddings=True,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
    ),
    "HeliumForCausalLM": _LLAMA._replace(
        o_bias=False,
        default_head_dim=128,
        interleaved_rope=True,
        defaults={"rms_norm_eps": 1e-8, "rope_theta": 100_000.0},
    ),
    "Exaone4ForCausalLM": Family(
        norm_placement="post",
        qk_norm="per head",
        windows="by layer type",
        second_rope="none in full layers",
        defaults={"rms_norm_eps": 1e-5, "sliding_window_pattern": 4},
    ),
    "InternLM3ForCausalLM": Family(
        Flag("qkv_bias"), Flag("bias"), Flag("bias"), default_head_dim=128, defaults={"rope_theta": 50_000.0}
    ),
    "CwmForCausalLM": Family(
        windows="by layer type", default_head_dim=128, defaults={"rms_norm_eps": 1e-5, "sliding_window_pattern": 4}
    ),
    "VaultGemmaForCausalLM": _GEMMA2._replace(
        norm_placement="pre",
        renames=((r"\.pre_feedforward_layernorm\.", ".post_attention_layernorm."),),
    ),
    "MinistralForCausalLM": Family(windows="by layer type", defaults={"sliding_window": 4096}),
    "Qwen2VLForConditionalGeneration": _text_part(_QWEN2, "qwen2_vl", "qwen2_vl_text")._replace(tower=("visual",)),
    "Qwen2_5_VLForConditionalGeneration": _text_part(_QWEN2, "qwen2_5_vl", "qwen2_5_vl_text")._replace(
        tower=("visual",)
    ),
    "Qwen3VLForConditionalGeneration": _text_part(_QWEN3, "qwen3_vl_text")._replace(
        tower=("visual",), axes_by_turns=True
    ),
    "Qwen3VLMoeForConditionalGeneration": _text_part(
        _QWEN3_MOE._replace(
            experts=QWEN3_MOE._replace(stacked=StackedNames(either_way=True)), defaults={"norm_topk_prob": True}
        ),
        "qwen3_vl_moe_text",
    )._replace(tower=("visual",), axes_by_turns=True),
    "Mistral3ForConditionalGeneration": _text_part(Family(windows="every layer"), "mistral")._replace(tower=_PROJECTED),
    "GptOssForCausalLM": Family(
        *(Flag("attention_bias", default=True),) * 2,
        windows="by layer type",
        sinks=True,
        experts=GPT_OSS,
        default_head_dim=64,
        defaults={
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "rope_parameters": {
                "type": "yarn",
                "factor": 32.0,
                "original_max_position_embeddings": 4096,
                "truncate": False,
            },
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "num_experts_per_tok": 4,
        },
    ),
    "Llama4ForCausalLM": _LLAMA4,
    "Llama4ForConditionalGeneration": _LLAMA4._replace(
        renames=(*_LANGUAGE_MODEL, *_LLAMA4.renames), skipped=_VISION, text_types=("llama4_text",)
    ),
    "Qwen3NextForCausalLM": _QWEN3_NEXT,
    "Qwen3_5ForCausalLM": _QWEN3_5._replace(experts=None),
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5._replace(experts=None, text_types=("qwen3_5_text",)),
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5._replace(text_types=("qwen3_5_moe_text",)),
    **OF_OTHER_PARTS,
    "LlavaForConditionalGeneration": _text_part(_LLAMA, "llama")._replace(tower=_PROJECTED),
    "InternVLForConditionalGeneration": _text_part(_QWEN2, "qwen2")._replace(tower=_PROJECTED),
    "Idefics3ForConditionalGeneration": _IDEFICS3,
    "SmolVLMForConditionalGeneration": _IDEFICS3,
}
