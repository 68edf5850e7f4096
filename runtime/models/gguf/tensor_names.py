"""Names of a GGUF file's tensors for the names that a decoder has for them, which are Llama's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ..config import ModelConfig
from ..experts.config import ExpertsConfig

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_LAYER = "model.layers."
# Patterns in names and their replacements; of several, the first that the file has.
_ENDS = (
    (r"^model\.embed_tokens\.", ("token_embd.",)),
    (r"^model\.embed_positions\.", ("position_embd.",)),
    (r"^model\.norm\.", ("output_norm.", "token_embd_norm.")),
    (r"^lm_head\.", ("output.",)),
)
_RECURRENT = (
    (r"\.conv\.conv1d\.", (".shortconv.conv.",)),
    (r"\.conv\.(in|out)_proj\.", (r".shortconv.\1_proj.",)),
    (r"\.linear_attn\.in_proj_qkv\.", (".attn_qkv.",)),
    (r"\.linear_attn\.in_proj_z\.", (".attn_gate.",)),
    (r"\.linear_attn\.in_proj_a\.", (".ssm_alpha.", ".ssm_ba.")),
    (r"\.linear_attn\.in_proj_b\.", (".ssm_beta.", ".ssm_ba.")),
    (r"\.(linear_attn|mamba)\.(conv1d|norm)\.", (r".ssm_\2.",)),
    (r"\.(linear_attn|mamba)\.out_proj\.", (".ssm_out.",)),
    (r"\.(linear_attn|mamba)\.(dt_bias|dt_proj\.bias)$", (".ssm_dt.bias",)),
    (r"\.(linear_attn|mamba)\.A_log$", (".ssm_a",)),
    (r"\.mamba\.D$", (".ssm_d",)),
    (r"\.mamba\.in_proj\.", (".ssm_in.",)),
    (r"\.mamba\.(x|dt)_proj\.", (r".ssm_\1.",)),
    (r"\.mamba\.(dt|b|c)_layernorm\.", (r".ssm_\1_norm.",)),
)
_PARTS = (
    (r"\.self_attn\.(q|k|v|qkv)_proj\.", (r".attn_\1.",)),
    (r"\.self_attn\.o_proj\.", (".attn_output.",)),
    (r"\.self_attn\.([qk])_norm\.", (r".attn_\1_norm.",)),
    (r"\.self_attn\.query_layernorm\.", (".attn_q_norm.",)),
    (r"\.self_attn\.key_layernorm\.", (".attn_k_norm.",)),
    (r"\.self_attn\.sinks$", (".attn_sinks.weight",)),
    (r"\.self_attn\.q_([ab])_proj\.", (r".attn_q_\1.",)),
    (r"\.self_attn\.kv_a_proj_with_mqa\.", (".attn_kv_a_mqa.",)),
    (r"\.self_attn\.(q|kv)_a_layernorm\.", (r".attn_\1_a_norm.",)),
    (r"\.self_attn\.kv_b_proj\.", (".attn_kv_b.",)),
    (r"\.pre_feedforward_layernorm\.", (".ffn_norm.",)),
    (r"\.post_feedforward_layernorm\.", (".post_ffw_norm.",)),
    (r"\.mlp\.gate_up_proj\.", (".ffn_up.",)),
)


class TensorNames:
    """Names in GGUF of the tensors of the model `config`, in a file that has `tensors`."""

    def __init__(self, config: ModelConfig, tensors: Collection[str]) -> None:
        self._tensors = tensors
        patterns = (
            *_ENDS,
            *_RECURRENT,
            *_norms(config, tensors),
            *_experts(config.experts),
            *_dense_mlp(config),
            *_PARTS,
        )
        self._patterns = [(re.compile(pattern), choices) for pattern, choices in patterns]

    def __call__(self, name: str) -> str:
        """Return the GGUF name of a tensor. Experts share a tensor, see `expert_index`."""
        for pattern, choices in self._patterns:
            if pattern.search(name):
                found = [re.sub(f"^{_LAYER}", "blk.", pattern.sub(choice, name)) for choice in choices]
                found += [one.removesuffix(".weight") for one in found]  # a norm of Falcon-H1
                return next((one for one in found if one in self._tensors), found[0])
        return name


def expert_index(name: str) -> int | None:
    """Return the expert's index in the shared tensor; None for other tensors."""
    match = _EXPERT.search(name)
    return None if match is None else int(match[1])


_Patterns = Iterator[tuple[str, tuple[str, ...]]]


def _norms(config: ModelConfig, tensors: Collection[str]) -> _Patterns:
    if config.norm_placement == "parallel, two norms" and "blk.0.attn_norm_2.weight" in tensors:  # Falcon
        yield r"\.input_layernorm\.", (".attn_norm_2.",)
        yield r"\.post_attention_layernorm\.", (".attn_norm.",)
    yield r"\.input_layernorm\.", (".attn_norm.",)
    yield r"(\.\d+)\.norm\.", (r"\1.attn_norm.",)
    after = config.norm_placement in ("post", "sandwich")
    yield (
        r"\.post_attention_layernorm\.",
        (".post_attention_norm.",) if after else (".ffn_norm.", ".post_attention_norm."),
    )


def _experts(experts: ExpertsConfig | None) -> _Patterns:
    if experts is None:
        return
    names, block = experts.names, re.escape(experts.names.block)
    for module, part in ((names.gate, "gate"), (names.up, "up"), (names.down, "down")):
        if module:
            yield rf"\.{block}\.experts\.\d+\.{module}\.", (f".ffn_{part}_exps.", ".ffn_gate_up_exps.")
    yield rf"\.{block}\.{re.escape(names.bias)}$", (".exp_probs_b.bias",)
    yield rf"\.{block}\.{re.escape(names.router)}\.", (".ffn_gate_inp.",)
    yield rf"\.{block}\.shared_expert_gate\.", (".ffn_gate_inp_shexp.",)
    yield rf"\.{re.escape(names.shared)}\.(gate|up|down)_proj\.", (r".ffn_\1_shexp.", r".ffn_\1.")


def _dense_mlp(config: ModelConfig) -> _Patterns:
    for module, part in zip(config.mlp_names[::-1], ("down", "up", "gate"), strict=False):
        yield rf"\.mlp\.{module}\.", (f".ffn_{part}.",)
