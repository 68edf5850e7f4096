"""Names and layouts of stored tensors: names other than Llama's, stacked matrices, heads in another order.

A rotary embedding here rotates the dimensions i and i + D/2 of a head. Where a family rotates neighbouring dimensions,
or only the first ones, the rows of queries and keys are reordered when they are read: scores do not depend on an order
that both share.

Legend: H query heads, K key/value heads, D head size, B rows that are reordered together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from ..config import ModelConfig, StoredLayout
from ..linear import Destination, in_order_of

Parts = dict[str, Destination]


# Names that some tools give to tensors of any family: classes without a head save themselves without `model.`, and
# llm-compressor gives Mixtral's experts the names of other families.
_OTHER_NAMES = (
    (r"^(layers\.\d|embed_tokens\.|norm\.)", r"model.\1"),
    *(
        (rf"(\.block_sparse_moe\.experts\.\d+)\.{other}\.", rf"\1.{own}.")
        for other, own in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
    ),
)


def renaming(stored: StoredLayout) -> Callable[[str], str]:
    """Return the function from a stored tensor's name to Llama's name of it."""
    patterns = [(re.compile(pattern), replacement) for pattern, replacement in (*stored.renames, *_OTHER_NAMES)]

    def rename(name: str) -> str:
        for pattern, replacement in patterns:
            name = pattern.sub(replacement, name)
        return name

    return rename


def as_stored(parts: Parts, config: ModelConfig, layers: range) -> Parts:
    """Return the destinations of the tensors as the family stores them; `parts` are those of Llama's layout.

    Raises ValueError, naming the tensor, when its format does not allow it.
    """
    stored, order_D = config.stored, rotary_order(config)
    counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    for index in layers:
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        attends = not config.is_recurrent(index)
        if order_D is not None and attends:
            names = ("q_proj", "k_proj", "q_norm", "k_norm")
            for name, count in zip(names, counts[:2] * 2, strict=True):
                if name.endswith("_proj") and reorders_outputs(config):
                    continue
                _reorder(parts, f"{attention}.{name}", order_D, count * config.head_dim)
        if config.output_gate and attends:
            each = config.num_heads * config.head_dim
            _stack(parts, attention, ("q_proj", "q_gate"), "q_proj", [each] * 2, _queries_then_gates(config))
        if stored.qkv != "separate" and attends:
            sizes = [count * config.head_dim for count in counts]
            order = _by_group(config) if stored.qkv == "by group" else None
            _stack(parts, attention, ("q_proj", "k_proj", "v_proj"), "qkv_proj", sizes, order)
        if stored.stacked_gate_up:
            names = ("gate_proj", "up_proj")
            _stack(parts, mlp, names, "gate_up_proj", [config.intermediate_size] * 2, None)
        if stored.transposed:
            for name in [name for name in parts if name.startswith(f"model.layers.{index}.")]:
                if len(parts[name].shape) == 2:
                    parts[name] = _transposed(parts[name])
    return parts


def rotary_order(config: ModelConfig) -> torch.Tensor | None:
    """Return the stored dimension of each of a head's dimensions, int64 [D]; None when the order is the same, or latent
    attention reorders them as they are computed."""
    if config.latent is not None:
        return None
    D, R = config.head_dim, config.rope.rotary_dim or config.head_dim
    dimensions = torch.arange(D)
    rotated, rest = dimensions[:R], dimensions[R:]
    first, second = (rotated[::2], rotated[1::2]) if config.stored.interleaved_rope else rotated.chunk(2)
    order_D = torch.cat((first, rest[: (D - R) // 2], second, rest[(D - R) // 2 :]))
    return None if torch.equal(order_D, dimensions) else order_D


def reorders_outputs(config: ModelConfig) -> bool:
    """Return True when a head's dimensions are reordered as they are computed: the stored rows cannot be, because their
    scales are those of blocks of rows."""
    own = config.quantisation
    return own is not None and own.scheme.source == "fp8" and rotary_order(config) is not None


def _by_group(config: ModelConfig) -> torch.Tensor:
    """Return the stored row of each row of queries, keys, values, where each key/value head's are stored together."""
    H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
    rows = torch.arange((H + 2 * K) * D).view(K, H // K + 2, D)
    return torch.cat((rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()))


def _queries_then_gates(config: ModelConfig) -> torch.Tensor:
    """Return the stored row of each row of queries, then gates, where each head's query and gate are stored
    together."""
    rows = torch.arange(2 * config.num_heads * config.head_dim).view(config.num_heads, 2, config.head_dim)
    return torch.cat((rows[:, 0].flatten(), rows[:, 1].flatten()))


def _reorder(parts: Parts, module: str, order_B: torch.Tensor, rows: int) -> None:
    """Reorder each B rows of the module's tensors, which have `rows` in all, or a norm's weights."""
    for name in [name for name in parts if name.startswith(f"{module}.")]:
        found = parts[name]
        axis = found.outputs
        if axis is None:
            continue
        if module.endswith("_norm"):  # [D], or [H, D]
            axis = len(found.shape) - 1
        elif found.shape[axis] != rows:
            raise ValueError(f"{name}: its heads are stored in another order, which its format does not allow")
        parts[name] = found._replace(put=_put_reordered(found, axis, order_B))


def _put_reordered(to: Destination, axis: int, order_B: torch.Tensor) -> Callable[[torch.Tensor], object]:
    def put(tensor: torch.Tensor) -> None:
        blocks = tensor.unflatten(axis, (-1, len(order_B)))
        to.put(blocks.index_select(axis + 1, order_B.to(tensor.device)).flatten(axis, axis + 1))

    return put


def _stack(
    parts: Parts, prefix: str, names: Sequence[str], stacked: str, sizes: Sequence[int], order: torch.Tensor | None
) -> None:
    """Join the destinations of several modules to those of one, whose rows are theirs one below the other.

    With `order`, row i of these is the stored row `order[i]`.
    """
    lasts = [name.removeprefix(f"{prefix}.{names[0]}.") for name in parts if name.startswith(f"{prefix}.{names[0]}.")]
    for last in lasts:
        pieces = [parts.pop(f"{prefix}.{name}.{last}") for name in names]
        name = f"{prefix}.{stacked}.{last}"
        joined = _joined(pieces, pieces[0].outputs)
        parts[name] = joined if order is None else joined._replace(put=in_order_of(joined, order, name))


def _joined(pieces: Sequence[Destination], axis: int | None) -> Destination:
    first = pieces[0]
    if axis is None:

        def put_whole(tensor: torch.Tensor) -> None:
            for piece in pieces:
                piece.put(tensor)

        return first._replace(put=put_whole, part=None)
    sizes = [piece.shape[axis] for piece in pieces]
    shape = (*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :])

    def put(tensor: torch.Tensor) -> None:
        for piece, own in zip(pieces, tensor.split(sizes, dim=axis), strict=True):
            piece.put(own if piece.part is None else own[piece.part])

    return first._replace(shape=shape, put=put, part=None)


def _transposed(to: Destination) -> Destination:
    part = None if to.part is None else to.part[::-1]
    axes = {0: 1, 1: 0, None: None}
    return to._replace(
        shape=to.shape[::-1],
        put=lambda tensor: to.put(tensor.t()),
        part=part,
        outputs=axes[to.outputs],
        inputs=axes[to.inputs],
    )


_FUSED_SCALES = re.compile(r"(?P<block>.*\.experts)\.(?P<matrices>gate_up|down)_proj_scale_inv")
_FUSED = {"gate_up": (("gate_proj", "w1"), ("up_proj", "w3")), "down": (("down_proj", "w2"),)}


def fused_scales(name: str, missing: Parts) -> Destination | None:
    """Return the destination of the scales of all experts in one tensor, as transformers saves those of FP8 by block
    beside the matrices of each expert; None where `name` is no such tensor. Its parts are taken out of `missing`."""
    match = _FUSED_SCALES.fullmatch(name)
    if match is None:
        return None
    pieces: dict[int, list[Destination]] = {}
    for names in _FUSED[match["matrices"]]:
        of_one = re.compile(rf"{re.escape(match['block'])}\.(\d+)\.(?:{'|'.join(names)})\.weight_scale_inv")
        for found in [found for each in missing if (found := of_one.fullmatch(each))]:
            pieces.setdefault(int(found[1]), []).append(missing.pop(found[0]))
    if not pieces:
        return None
    first = _joined(next(iter(pieces.values())), 0)

    def put(scales_NRC: torch.Tensor) -> None:
        if len(scales_NRC) <= max(pieces):
            raise ValueError(f"has scales of {len(scales_NRC)} experts, not of {max(pieces) + 1}")
        for number, parts in pieces.items():
            _joined(parts, 0).put(scales_NRC[number])

    return Destination((-1, *first.shape), put)


# Names of attention scales in quantised checkpoints: llm-compressor writes `self_attn.k_scale` (vLLM:
# `self_attn.attn.k_scale`), ModelOpt `self_attn.k_proj.k_scale`, Quark `self_attn.k_proj.output_scale`, AutoFP8 one
# `self_attn.kv_scale` for both.
_KV = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.|[kv]_proj\.)?(?P<whose>k|v|kv)_scale|(?P<output>[kv])_proj\.output_scale)"
)
# Scales of queries and of the softmax, for FP8 attention products, which are not computed here.
_UNUSED = re.compile(
    r"model\.layers\.\d+\.self_attn\.(?:(?:attn\.)?(?:q|prob)_scale|q_proj\.(?:q|output)_scale|prob_output_scale)"
)


def parse_kv_scale_name(name: str) -> tuple[str, int] | None:
    """Return what the tensor scales, "k", "v" or "kv", and its layer; None when it is no KV scale."""
    match = _KV.fullmatch(name)
    return None if match is None else (match["whose"] or match["output"], int(match["layer"]))


def is_attention_scale(name: str) -> bool:
    return parse_kv_scale_name(name) is not None or _UNUSED.fullmatch(name) is not None
