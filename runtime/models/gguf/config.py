"""The ModelConfig of a GGUF file: its metadata are mapped to the fields of a config.json, as `families` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import ModelConfig, StoredLayout, parse_config
from ..errors import CheckpointError
from ..families.table import FAMILIES
from ..quantised.scheme import GGUF_GROUP, Quantisation, Scheme, WeightKind
from ..rope.angles import rope_amplitude
from ..rope.config import RopeConfig
from .block_reader import block_modules, four_bit_modules
from .families import ARCHITECTURES, Architecture, architecture_of
from .file import GgufFile

_COUNTS = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
}
ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"


def read_gguf_config(file: GgufFile) -> ModelConfig:
    """Make the ModelConfig of `file`. Raises CheckpointError for an architecture or setting that is not computed
    here."""
    if file.architecture == "clip":
        raise CheckpointError(
            file.path,
            "it is the vision tower of a model (mmproj), and images are read of folders of safetensors only: give the "
            "model's own GGUF file for texts, or its folder with --picture-bytes",
        )
    if file.architecture not in ARCHITECTURES:
        raise CheckpointError(
            file.path,
            f"general.architecture: supported: {', '.join(ARCHITECTURES)}; {file.architecture!r} is not supported",
        )
    if not file.value("{arch}.attention.causal", default=True):
        raise _refused(file, "attention.causal", "true", False)
    if "token_embd.weight" not in file.tensors:
        raise CheckpointError(file.path, "the tensor token_embd.weight is missing")
    row = architecture_of(file.architecture, file.has)
    if "attention_multiplier" in row.fields and not file.value("{arch}.attention.scale"):
        raise _refused(file, "attention.scale", "a number, as Granite's files have it", None)
    config = parse_config(_to_config_json(file, row), file.path)
    config = _as_written(file, row, config)
    formats = block_modules(file, config)
    if not formats:
        return config
    kind: WeightKind = "int4" if four_bit_modules(formats, config) else "int8"
    scheme = Scheme(kind=kind, source="gguf", group_size=GGUF_GROUP)
    return replace(config, quantisation=Quantisation(scheme, block_formats=formats))


def _to_config_json(file: GgufFile, row: Architecture) -> dict[str, Any]:
    def value(key: str) -> Any:
        return file.value(f"{{arch}}.{key}")

    num_layers = value("block_count") - (value("nextn_predict_layers") or 0)
    raw = {name: _largest(value(key)) for name, key in (_COUNTS | dict(row.fields)).items()}
    size, num_heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = value("attention.key_length") or (size // num_heads if num_heads else None)
    latent = "attention.kv_lora_rank" in row.fields.values()
    if latent and (key_size := value("attention.key_length_mla")):
        raw["qk_nope_head_dim"] = key_size - raw["qk_rope_head_dim"]
    elif latent:
        raise _refused(file, "attention.key_length_mla", "files of May 2025 or later", None)
    raw |= {
        "architectures": [row.kind],
        "num_hidden_layers": num_layers,
        # Rows of the embedding, which may be more than the vocabulary's tokens.
        "vocab_size": int(file.tensors["token_embd.weight"].shape[1]),
        "head_dim": None if latent else head_dim,
        "query_pre_attn_scalar": size // num_heads if num_layers == row.large_layers else head_dim,
        FAMILIES[row.kind].norm_eps_field: value("attention.layer_norm_rms_epsilon")
        or value("attention.layer_norm_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rope(file, row, head_dim),
        **_windows(file, row, num_layers),
    }
    if FAMILIES[row.kind].recurrent is not None:
        raw |= _recurrent(file, raw, num_layers)
    raw |= row.constants
    if row.kind == "DeepseekV2ForCausalLM" and (raw["n_group"] or 1) > 1:
        raw["topk_method"] = "group_limited_greedy"
    for name, own in FAMILIES[row.kind].aliases.items():
        raw.setdefault(own, raw.get(name))
    return {name: own for name, own in raw.items() if own is not None}


def _largest(value: Any) -> Any:
    """Return the largest of a list by layer, which has zeros for layers without the part; other values as they are."""
    return max(value) if isinstance(value, list) else value


def _recurrent(file: GgufFile, raw: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Return the fields of recurrent layers, which tensors show."""
    kinds = [_kind(file, layer) for layer in range(num_layers)]
    first = next((str(layer) for layer, kind in enumerate(kinds) if kind == "linear_attention"), "0")
    inner, heads = file.value("{arch}.ssm.inner_size"), file.value("{arch}.ssm.time_step_rank")

    def has(name: str) -> bool:
        return f"blk.{first}.{name}" in file.tensors

    fields: dict[str, Any] = {
        "layer_types": kinds,
        "layers_block_type": kinds,
        "conv_bias": has("shortconv.in_proj.bias"),
        "mamba_conv_bias": has("ssm_conv1d.bias"),
        "mamba_proj_bias": has("ssm_in.bias"),
        "projectors_bias": has("ssm_out.bias"),
        "mamba_rms_norm": has("ssm_norm.weight"),
        "num_local_experts": file.value("{arch}.expert_count", default=0),
        "shared_intermediate_size": raw.get("shared_intermediate_size") or raw["intermediate_size"],
        # Jamba's, replaced by the layers of `kinds`.
        "attn_layer_period": num_layers,
        "attn_layer_offset": kinds.index("full_attention") if "full_attention" in kinds else 0,
    }
    if inner is not None:
        fields |= {"linear_value_head_dim": inner // heads, "mamba_d_head": inner // heads}
        fields["mamba_expand"] = max(1, inner // raw["hidden_size"])
    return fields


def _kind(file: GgufFile, layer: int) -> str:
    block = f"blk.{layer}"
    if f"{block}.attn_output.weight" in file.tensors:
        return "full_attention"
    if any(f"{block}.{name}.weight" in file.tensors for name in ("ssm_conv1d", "shortconv.conv")):
        return "linear_attention"
    return "moe" if f"{block}.ffn_gate_inp.weight" in file.tensors else "mlp"


def _windows(file: GgufFile, row: Architecture, num_layers: int) -> dict[str, Any]:
    """Return the fields of windows: which layers have one, by the file or as the architecture has it."""
    window = file.value("{arch}.attention.sliding_window")
    if not window:
        return {"sliding_window": None, "layer_types": ["full_attention"] * num_layers if row.full_every else None}
    pattern = file.value("{arch}.attention.sliding_window_pattern", default=row.full_every)
    if pattern is None:
        return {}
    if isinstance(pattern, int):
        pattern = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    return {"layer_types": ["sliding_attention" if own else "full_attention" for own in pattern[:num_layers]]}


def _as_written(file: GgufFile, row: Architecture, config: ModelConfig) -> ModelConfig:
    """Return the config with what the converter changed in the tensors, and what they alone show."""
    first = next((name.split(".")[1] for name in file.tensors if name.endswith(".attn_output.weight")), "0")
    layer, no_gate = f"blk.{first}", not any(".ffn_gate." in name for name in file.tensors)
    has_dense = any(name.endswith(".ffn_down.weight") for name in file.tensors)
    two_norms = "blk.0.attn_norm_2.weight" in file.tensors
    layers = range(config.num_layers)
    experts, recurrent = config.experts, config.recurrent
    if experts is not None:
        routed = tuple(f"blk.{index}.ffn_gate_inp.weight" in file.tensors for index in layers)
        shares = file.architecture != "granitemoe" or file.value("{arch}.expert_shared_feed_forward_length")
        shared_size = experts.shared_size if shares else None
        experts = replace(experts, stacked=None, layers=routed, shared_size=shared_size)
    if recurrent is not None and not recurrent.family.parallel:
        family = recurrent.family._replace(stored="separate") if recurrent.is_delta else recurrent.family
        states = tuple(_kind(file, index) == "linear_attention" for index in layers)
        recurrent = replace(recurrent, family=family, layers=states)
    further = [str(index) for index in range(config.num_layers, file.value("{arch}.block_count"))]
    return replace(
        config,
        norm=config.norm.removesuffix("_plus_one"),  # type: ignore[arg-type]  # it is in the stored weights
        norm_placement="parallel, two norms" if two_norms else config.norm_placement,
        qkv_bias=any(f"{layer}.attn_{name}.bias" in file.tensors for name in ("q", "qkv")),
        o_bias=f"{layer}.attn_output.bias" in file.tensors,
        mlp_bias=f"{layer}.ffn_up.bias" in file.tensors,
        head_bias="output.bias" in file.tensors,
        experts=experts,
        recurrent=recurrent,
        rope=_with_tensors(file, config.rope, config.rope_dim),
        stored=StoredLayout(
            qkv="stacked" if f"{layer}.attn_qkv.weight" in file.tensors else "separate",
            stacked_gate_up=config.gated_mlp and has_dense and no_gate,
            interleaved_rope=row.neighbours_rotate or config.stored.interleaved_rope,
            # Layers that predict tokens further ahead are not read.
            skipped=rf"blk\.({'|'.join(further)})\." if further else None,
        ),
    )


def _rope(file: GgufFile, row: Architecture, head_dim: int | None) -> dict[str, Any]:
    """Return the scaling as config.json has it. Without a type llama.cpp scales linearly, if there is a factor."""
    rope: dict[str, Any] = {"rope_theta": file.value("{arch}.rope.freq_base", default=10000.0)}
    num_rotated = file.value("{arch}.rope.dimension_count", default=head_dim)
    if FAMILIES[row.kind].second_rope == "own in window layers":
        local = {"rope_theta": file.value("{arch}.rope.freq_base_swa", default=10000.0)}
        return {"full_attention": rope | _scaling(file), "sliding_attention": local}
    if head_dim and num_rotated != head_dim and "kv_lora_rank" not in row.fields:
        rope["partial_rotary_factor"] = _share(file, num_rotated, head_dim)
    elif FAMILIES[row.kind].defaults.get("partial_rotary_factor") is not None:
        rope["partial_rotary_factor"] = 1.0
    return rope | _scaling(file)


def _share(file: GgufFile, num_rotated: int, head_dim: int) -> float:
    whole_only = file.architecture == "llama"  # as llama.cpp has it: the rows of whole heads are in another order
    if whole_only or num_rotated % 2 or not 0 < num_rotated < head_dim:
        raise _refused(file, "rope.dimension_count", f"the head's size, {head_dim}", num_rotated)
    return (num_rotated + 0.5) / head_dim  # rounded down to the number


def _scaling(file: GgufFile) -> dict[str, Any]:
    def scaling(key: str, default: Any = None) -> Any:
        return file.value(f"{{arch}}.rope.scaling.{key}", default=default)

    if (long := file.tensors.get(LONG_FACTORS)) is not None and SHORT_FACTORS in file.tensors:
        short = file.tensors[SHORT_FACTORS]
        return {
            "rope_type": "longrope",
            "short_factor": short.data.reshape(-1).tolist(),
            "long_factor": long.data.reshape(-1).tolist(),
            "original_max_position_embeddings": scaling("original_context_length"),
            "attention_factor": scaling("attn_factor"),
        }
    kind = scaling("type", default="linear")
    factor = scaling("factor", default=file.value("{arch}.rope.scale_linear"))
    if kind not in ("none", "linear", "yarn"):
        raise _refused(file, "rope.scaling.type", "none, linear, yarn", kind)
    if kind == "none" or not factor or (kind == "linear" and factor == 1):
        return {}
    for key in ("yarn_ext_factor", "yarn_attn_factor"):
        if (value := scaling(key)) not in (None, 1.0):
            raise _refused(file, f"rope.scaling.{key}", "the default", value)
    mscale = scaling("yarn_log_multiplier") or None
    if mscale is not None and file.architecture != "deepseek2":
        raise _refused(file, "rope.scaling.yarn_log_multiplier", "the default", mscale)
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": scaling("original_context_length"),
        "beta_fast": scaling("yarn_beta_fast"),
        "beta_slow": scaling("yarn_beta_slow"),
        "mscale": mscale and 10 * mscale,
        "mscale_all_dim": mscale and 10 * mscale,
        "truncate": file.architecture != "gpt-oss",  # published so, and nothing in the file says it
    }


def _with_tensors(file: GgufFile, rope: RopeConfig, head_dim: int) -> RopeConfig:
    """Return the rope with what config.json has no fields for: divisors of its frequencies, and a factor of cos and
    sin."""
    if (tensor := file.tensors.get(ROPE_FACTORS)) is not None:
        factors = tuple(float(factor) for factor in tensor.data.reshape(-1))
        num_rotated = rope.rotary_dim or head_dim
        if len(factors) != num_rotated // 2:
            raise CheckpointError(file.path, f"{ROPE_FACTORS} has {len(factors)} factors for heads of {num_rotated}")
        rope = replace(rope, factors=factors)
    attention_factor = file.value("{arch}.rope.scaling.attn_factor")
    if attention_factor is not None and rope.type != "longrope":
        rope = replace(rope, attention_factor=float(attention_factor) * rope_amplitude(rope))
    return rope


def _refused(file: GgufFile, key: str, supported: str, value: object) -> CheckpointError:
    return CheckpointError(file.path, f"{file.architecture}.{key}: supported: {supported}; {value!r} is not supported")
