"""Layers of multi-token prediction in plain torch, and random checkpoints that hold some.

The layers are the last ones of a larger random model of transformers, whose first ones are the model itself. A layer
sees, at place i, the token `ahead` places later and the state before; it is computed anew for every whole sequence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
LATENT = SIZES | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
HYBRID = SIZES | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 10,
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
BLOCKS = LATENT | {  # whole blocks of 128
    **dict.fromkeys(("hidden_size", "kv_lora_rank", "q_lora_rank", "moe_intermediate_size"), 128),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 64),
    "intermediate_size": 256,
}
NUM_LAYERS = 2  # of the model itself
GLM_4_5 = SIZES | {
    "head_dim": 16,
    "attention_bias": True,
    "use_qk_norm": True,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "first_k_dense_replace": 1,
}
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "deepseek": (transformers.DeepseekV3Config, LATENT),
    "deepseek in blocks": (transformers.DeepseekV3Config, BLOCKS),
    "glm": (transformers.Glm4MoeLiteConfig, LATENT | {"n_group": 1, "topk_group": 1}),
    "glm-4.5": (transformers.Glm4MoeConfig, GLM_4_5),
    "qwen3-next": (transformers.Qwen3NextConfig, HYBRID),
    "qwen3.5": (transformers.Qwen3_5TextConfig, HYBRID),
}


@dataclass
class Joint:
    """Norms and projection before a layer, and the norm behind it."""

    embedding_E: torch.Tensor
    hidden_E: torch.Tensor
    projection: torch.Tensor
    output_E: torch.Tensor


@dataclass
class NaiveMtp:
    """A model and its layers of multi-token prediction."""

    model: PreTrainedModel  # with more layers than its own
    joints: list[Joint]  # of each further layer
    plus_one: bool  # norms multiply by 1 + weight

    def states(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the model's final hidden states, [T, E]."""
        x = self._embed(tokens)
        for layer in self.model.model.layers[:NUM_LAYERS]:
            x = self._layer(layer, x)
        return self.model.model.norm(x)[0]

    def guesses(self, tokens: Sequence[int], steps: int, num_layers: int) -> tuple[list[int], list[torch.Tensor]]:
        """Return the likeliest tokens that follow, and the logits of each."""
        levels = [self.states(tokens[:-1])[None]]
        found: list[int] = []
        logits = []
        ahead, inputs = 1, levels[0]
        for step in range(steps):
            k = min(step, num_layers - 1)
            sequence = [*tokens, *found]
            if step < num_layers:
                inputs, ahead = levels[-1], step + 1
            else:  # the last layer goes on with its own output
                inputs = torch.cat((inputs, levels[-1][:, -1:]), dim=1)
            # Place i holds the state of place i, and the token `ahead` places later.
            levels.append(self._level(k, inputs, sequence[ahead : ahead + inputs.shape[1]]))
            logits.append(self.model.lm_head(levels[-1][0, -1]))
            found.append(int(logits[-1].argmax()))
        return found, logits

    def _level(self, k: int, before: torch.Tensor, tokens: Sequence[int]) -> torch.Tensor:
        joint = self.joints[k]
        parts = self._norm(self._embed(tokens), joint.embedding_E), self._norm(before, joint.hidden_E)
        joined = F.linear(torch.cat(parts, dim=-1), joint.projection)
        return self._norm(self._layer(self.model.model.layers[NUM_LAYERS + k], joined), joint.output_E)

    def _embed(self, tokens: Sequence[int]) -> torch.Tensor:
        return self.model.model.embed_tokens(torch.tensor([list(tokens)]))

    def _norm(self, x: torch.Tensor, weight_E: torch.Tensor) -> torch.Tensor:
        scale = self.model.config.rms_norm_eps
        return x * (x.pow(2).mean(-1, keepdim=True) + scale).rsqrt() * (weight_E + self.plus_one)

    def _layer(self, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        T = x.shape[1]
        places = torch.arange(T)[None]
        angles = self.model.model.rotary_emb(x, places)
        recurrent = hasattr(layer, "linear_attn")
        mask = None if recurrent else torch.full((T, T), -torch.inf).triu(1)[None, None]
        output = layer(x, attention_mask=mask, position_ids=places, position_embeddings=angles)
        return output[0] if isinstance(output, tuple) else output


def make_checkpoint(kind: str, path: Path, num_mtp: int = 1, *, agrees: bool = False) -> NaiveMtp:
    """Write a random checkpoint with `num_mtp` layers of multi-token prediction to `path`; return its judge.

    With `agrees` layers change little of the embedding that they get, so that guesses are often right.
    """
    torch.manual_seed(3)
    config_of, fields = KINDS[kind]
    is_hybrid = fields is HYBRID
    own: dict[str, Any] = {"num_hidden_layers": NUM_LAYERS + num_mtp}
    if is_hybrid:
        own["layer_types"] = ["linear_attention", *["full_attention"] * (1 + num_mtp)]
    config = config_of(**fields, **own)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.sub_(3.0)
            elif parameter.dim() == 1 or "conv1d" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif agrees and re.search(r"(o_proj|out_proj|down_proj)(\.weight)?$", name):
                parameter.mul_(0.2)
            elif agrees and "embed_tokens" in name:
                parameter.mul_(9.0)
    model.eval().save_pretrained(path)
    E = config.hidden_size
    offset = 0.0 if is_hybrid else 1.0

    def joint() -> Joint:
        if agrees:
            ones, final = torch.full((E,), offset), model.model.norm.weight.detach()
            return Joint(ones, ones, torch.eye(E, 2 * E), final)
        norms = [offset + 0.3 * torch.randn(E) for _ in range(3)]
        return Joint(norms[0], norms[1], torch.randn(E, 2 * E) / (2 * E) ** 0.5, norms[2])

    joints = [joint()] * num_mtp if is_hybrid else [joint() for _ in range(num_mtp)]
    tensors = load_file(path / "model.safetensors")
    for place, each in enumerate(joints):
        prefix = f"model.layers.{NUM_LAYERS + place}."
        names = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
        if not is_hybrid:
            names = tuple(f"{prefix}{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
            tensors[f"{prefix}embed_tokens.weight"] = model.model.embed_tokens.weight.detach().clone()
            tensors[f"{prefix}shared_head.head.weight"] = model.lm_head.weight.detach().clone()
        parts = (each.embedding_E, each.hidden_E, each.projection, each.output_E)
        tensors |= {f"{name}.weight": part.clone() for name, part in zip(names, parts, strict=True)}
        if is_hybrid:
            for name in [name for name in tensors if name.startswith(prefix)]:
                tensors[name.replace(prefix, f"mtp.layers.{place}.")] = tensors.pop(name)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    raw = json.loads((path / "config.json").read_text("utf-8"))
    raw["num_hidden_layers"] = NUM_LAYERS
    if is_hybrid:
        raw["layer_types"] = raw["layer_types"][:NUM_LAYERS]
    else:
        raw["num_nextn_predict_layers"] = num_mtp
    if "mlp_layer_types" in raw:
        raw["mlp_layer_types"] = raw["mlp_layer_types"][:NUM_LAYERS]
    (path / "config.json").write_text(json.dumps(raw), "utf-8")
    return NaiveMtp(model, joints, is_hybrid)
