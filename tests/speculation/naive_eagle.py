"""A draft head and EAGLE-2's tree as in the papers: one path at a time, dense attention, no cache."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

Tensors = dict[str, torch.Tensor]


@dataclass
class NaiveHead:
    """`tensors` have the published names. `kind`, sizes and eps as in its config.json."""

    tensors: Tensors
    kind: str
    num_heads: int
    num_kv_heads: int
    eps: float
    theta: float
    embedding: torch.Tensor
    lm_head: torch.Tensor

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.tensors[name]

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        y = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return y if bias is None else y + bias

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x [n, heads, D] at positions 0..n-1."""
        n, _, D = x.shape
        angles = torch.arange(n)[:, None] * self.theta ** (-torch.arange(0, D, 2) / D)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        a, b = x[..., : D // 2], x[..., D // 2 :]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def run(self, tokens: list[int], features: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Estimate [E] and logits [V] after the last of `tokens`, each with the feature before it."""
        layer = "layers.0" if self.kind == "eagle" else "midlayer"
        e, f = self.embedding[torch.tensor(tokens)], torch.stack(features)
        if self.kind == "eagle":
            residual = x = self.linear(torch.cat((e, f), -1), "fc")
        else:
            residual = f
            parts = self.norm(e, f"{layer}.input_layernorm.weight"), self.norm(f, f"{layer}.hidden_norm.weight")
            x = torch.cat(parts, -1)
        n, H, K = len(tokens), self.num_heads, self.num_kv_heads
        q = self.rotate(self.linear(x, f"{layer}.self_attn.q_proj").view(n, H, -1))
        k = self.rotate(self.linear(x, f"{layer}.self_attn.k_proj").view(n, K, -1))
        v = self.linear(x, f"{layer}.self_attn.v_proj").view(n, K, -1)
        heads = []
        for h in range(H):
            scores = q[:, h] @ k[:, h * K // H].T / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
            heads.append(scores.softmax(-1) @ v[:, h * K // H])
        residual = residual + self.linear(torch.cat(heads, -1), f"{layer}.self_attn.o_proj")
        x = self.norm(residual, f"{layer}.post_attention_layernorm.weight")
        gate = torch.nn.functional.silu(self.linear(x, f"{layer}.mlp.gate_proj"))
        out = (residual + self.linear(gate * self.linear(x, f"{layer}.mlp.up_proj"), f"{layer}.mlp.down_proj"))[-1]
        read = out if self.kind == "eagle" else self.norm(out, "norm.weight")
        return out, read @ self.tensors.get("lm_head.weight", self.lm_head).T


@dataclass
class Node:
    path: tuple[int, ...]
    score: float
    order: int  # in which it was looked at


def naive_tree(
    children: Callable[[tuple[int, ...]], torch.Tensor], num_steps: int, top_k: int, num_tokens: int
) -> list[Node]:
    """The kept nodes without the root, in the order of their computation. `children` gives log-probabilities of a
    path's children."""

    def best(nodes: list[Node], count: int) -> list[Node]:
        return sorted(nodes, key=lambda node: (-node.score, node.order))[:count]

    front, seen = [Node((), 0.0, 0)], []
    for _ in range(num_steps):
        layer = []
        for node in front:
            values = children(node.path)
            for token in sorted(range(len(values)), key=lambda t: -values[t].item())[:top_k]:
                layer.append(Node((*node.path, token), node.score + values[token].item(), len(seen) + len(layer)))
        seen += layer
        front = best(layer, top_k)
    return sorted(best(seen, num_tokens - 1), key=lambda node: node.order)


def paths(tokens: list[int], parents: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


SIZES = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2}


def random_tensors(kind: str, *, vocab: int, width: int = 32, target: int = 32, bias: tuple[str, ...] = ()) -> Tensors:
    """A head's tensors under their published names. `vocab`: of an EAGLE-3 head's logits."""
    layer = "layers.0" if kind == "eagle" else "midlayer"
    inner = width if kind == "eagle" else 2 * width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, 2 * width if kind == "eagle" else 3 * target),
        f"{layer}.self_attn.q_proj.weight": (width, inner),
        f"{layer}.self_attn.k_proj.weight": (width // 2, inner),
        f"{layer}.self_attn.v_proj.weight": (width // 2, inner),
        f"{layer}.self_attn.o_proj.weight": (width, width),
        f"{layer}.mlp.gate_proj.weight": (40, width),
        f"{layer}.mlp.up_proj.weight": (40, width),
        f"{layer}.mlp.down_proj.weight": (width, 40),
        f"{layer}.post_attention_layernorm.weight": (width,),
    }
    if kind == "eagle3":
        shapes |= {f"{layer}.{name}.weight": (width,) for name in ("hidden_norm", "input_layernorm")}
        shapes |= {"norm.weight": (width,), "lm_head.weight": (vocab, width)}
    shapes |= {name: shapes[name.replace(".bias", ".weight")][:1] for name in bias}
    draw = torch.Generator().manual_seed(len(shapes))
    return {
        name: 1 + 0.3 * torch.randn(shape, generator=draw)
        if len(shape) == 1 and "bias" not in name
        else torch.randn(shape, generator=draw) * shape[-1] ** -0.5
        for name, shape in shapes.items()
    }


def write_config(path: Path, **fields: object) -> None:
    path.mkdir(parents=True, exist_ok=True)
    config = SIZES | {"num_hidden_layers": 1, "rms_norm_eps": 1e-5, "rope_theta": 5000.0, "vocab_size": 61} | fields
    (path / "config.json").write_text(json.dumps(config))
