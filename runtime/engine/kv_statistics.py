"""Statistics that stored keys are relative to: measured on a text, kept in a file, checked by what they cost.

See docs/inside/decisions/0010-scales-before-the-first-token.md.

Legend: T tokens, L layers, K key/value heads, H query heads, D head size.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ... import loops
from ...kernels import PACKED_INT4, Attention, AttentionArgs, KvCache, apply_rope
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.parallel.group import SINGLE_RANK, Group
from ..models.rope.angles import rope_frequencies
from ..models.stored.digest import weights_digest
from ..models.stored.kv_scales import KvConstants, KvStatistics
from ..protocol.errors import RamiformError, RequestError
from ..scheduler.plan import Row
from ..tokenizer import load_tokenizer
from .inputs import decoder_inputs
from .kv_pool import PAGE_SIZE, KvMemory
from .paths.stages import hidden_and_features

logger = logging.getLogger("ramiform.engine")

TOKENS_AT_ONCE = 512
_START_TOKENS = 192  # 64 do nearly as well; each takes time at start
_FIRST_TOKENS = 4  # of a text, which attract attention: their keys are unlike the others
_LEAST_PART = 1e-2  # of a head's size: the least that a pair of channels counts as
_KEPT_SECONDS = 0.5  # of measuring, from which on statistics are kept on disk
_KEPT_VERSION = 2
_NAMES = {PACKED_INT4: "int4", torch.int8: "int8"}
# Prose, code, records, a dialogue, a table, other languages: what channels have in all of them is their mean.
_TEXT = """The harbour was quiet before dawn. Two fishermen, Anna and her brother, checked the nets and talked about \
the price of diesel, which had doubled since March 2019. "We leave at six," she said, "unless the wind turns."

def moving_average(values, window=5):
    total, out = 0.0, []
    for i, value in enumerate(values):
        total += value
        out.append(total / min(i + 1, window))
    return out

{"id": 417, "name": "Blue lamp", "price": 39.90, "tags": ["home", "light"], "active": true}

Question: Why does ice float on water?
Answer: Because water expands when it freezes, so that ice is less dense than the liquid below it.

| Country | Capital |
|---|---|
| Norway | Oslo |

Der Zug nach Hamburg fährt um 8:15 Uhr ab. Le train de Paris arrive à midi. El mercado abre los lunes.
"""


def start_text(path: Path, config: ModelConfig) -> list[int]:
    """Return the built-in text as tokens of the model at `path`; random ones if it has no tokenizer that fits."""
    length = min(_START_TOKENS, config.context_length)
    try:
        tokenizer = load_tokenizer(path)
        tokens = tokenizer.encode(_TEXT, add_bos=tokenizer.adds_bos)[:length]
    except RamiformError:
        tokens = []
    if tokens and max(tokens) < config.vocab_size:
        return tokens
    return np.random.default_rng(0).integers(config.vocab_size, size=length).tolist()


def layer_frequencies(config: ModelConfig) -> torch.Tensor:
    """Return the radians a position by which the channel pairs of each layer with keys rotate, [L, D / 2]; 0 where
    angles depend on more than the position, or are not known."""
    places = [
        place for place in range(config.num_layers) if config.part(place) != "mlp" and not config.is_recurrent(place)
    ]
    found = []
    for place in places:
        rope = config.second_rope if config.uses_second_rope(place) and config.second_rope else config.rope
        own = torch.zeros(config.head_dim // 2)
        if config.is_native and not rope.depends_on_length:
            own = rope_frequencies(rope, config.head_dim)
        found.append(own)
    return torch.stack(found)


class _QuerySizes:
    """Sums of squares of a text's queries after the first `num_skipped`, by layer, key/value head and channel."""

    def __init__(self, memory: KvMemory, num_skipped: int) -> None:
        L, _, K, D = memory.k_LSKD.shape
        self.memory, self.num_skipped = memory, num_skipped
        self.num_seen_LK = np.zeros((L, K), dtype=np.int64)  # a chunk comes in parts, to stages
        self.sums_LKD = torch.zeros(L, K, D, dtype=torch.float64, device=memory.k_LSKD.device)

    def add(self, q_THD: torch.Tensor, kv: KvCache) -> None:
        """Add the queries of the heads of `kv`, a view of the memory."""
        whole = self.memory.k_LSKD
        place = (kv.k_SKD.data_ptr() - whole.data_ptr()) // whole.element_size()
        layer, head, K = place // whole.stride(0), place % whole.stride(1) // whole.stride(2), kv.k_SKD.shape[1]
        num_skipped = max(0, self.num_skipped - int(self.num_seen_LK[layer, head]))
        self.num_seen_LK[layer, head : head + K] += len(q_THD)
        q_TKGD = q_THD[num_skipped:].double().unflatten(1, (K, -1))
        self.sums_LKD[layer, head : head + K] += q_TKGD.square().sum((0, 2))


class _WatchedAttention:
    """Attention whose queries are counted."""

    def __init__(self, attention: Attention, sizes: _QuerySizes) -> None:
        self._attention, self._sizes = attention, sizes

    def attend(
        self, q_THD: torch.Tensor, kv: KvCache, scale: float, sinks_H: torch.Tensor | None = None
    ) -> torch.Tensor:
        self._sizes.add(q_THD, kv)
        return self._attention.attend(q_THD, kv, scale, sinks_H)


class _WatchedOps:
    """Ops whose attention counts its queries."""

    def __init__(self, ops: Any, sizes: _QuerySizes) -> None:
        self._ops, self._sizes = ops, sizes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def attention(self, args: AttentionArgs) -> _WatchedAttention:
        return _WatchedAttention(self._ops.attention(args), self._sizes)


@torch.inference_mode()
def measure_statistics(
    model: Decoder, texts: Iterable[Sequence[int]], group: Group = SINGLE_RANK
) -> tuple[KvStatistics, int]:
    """Measure the statistics on texts, given as token ids, for the layers and heads that the rank of `group` computes;
    return them and the number of tokens.

    Each text is computed by itself, with keys and values in float32. Raises RequestError when some are not finite.
    """
    config, device = model.config, model.device
    frequencies, count, sums_LKD, first_LKD = layer_frequencies(config).to(device), 0, None, None
    for text in texts:
        pages = list(range(-(-len(text) // PAGE_SIZE)))
        memory = KvMemory(config, len(pages), device=device, dtype=torch.float32)
        skipped = min(_FIRST_TOKENS, len(text) - 1)
        sizes, watched = _QuerySizes(memory, skipped), copy.copy(model)
        watched.ops = _WatchedOps(model.ops, sizes)  # type: ignore[assignment]  # it is what it delegates to
        chunk = TOKENS_AT_ONCE if config.recurrent is None else len(text)  # recurrent states have no slots here
        for start in range(0, len(text), chunk):
            part = list(text[start : start + chunk])
            row = Row(rid="", tokens=part, first_position=start, pages=pages, widened=True)
            hidden_and_features([row], np.array([len(row.tokens) - 1]), watched, memory.layers(), group, ())
        k_LTKD = _turned_back(memory.k_LSKD[:, : len(text)], frequencies)
        if first_LKD is None:
            first_LKD = k_LTKD[:, 0].clone()
        own = k_LTKD[:, skipped:].double()
        found = torch.stack((own.sum(1), own.square().sum(1), sizes.sums_LKD))
        sums_LKD = found if sums_LKD is None else sums_LKD + found
        count += len(text) - skipped
    assert sums_LKD is not None, "no text"
    assert first_LKD is not None
    if not (sums_LKD.isfinite().all() and first_LKD.isfinite().all()):
        raise RequestError(f"keys or queries are not finite in {model.dtype}: they have no mean", param="dtype")
    mean_LKD = sums_LKD[0] / count
    if _has_unknown_angles(config):  # by which a mean cannot be turned
        mean_LKD *= frequencies.any(-1)[:, None, None]
    deviation_LKD = (sums_LKD[1] / count - mean_LKD.square()).clamp_min(0).sqrt()
    factor_LKD = _balanced(deviation_LKD, sums_LKD[2].sqrt())
    tensors = (own.float().cpu() for own in (mean_LKD, first_LKD, factor_LKD))
    return KvStatistics(frequencies.cpu(), *tensors), count


def _has_unknown_angles(config: ModelConfig) -> bool:
    """Return True if keys may have been rotated by angles that `layer_frequencies` does not know."""
    return not config.is_native or any(
        rope is not None and rope.depends_on_length for rope in (config.rope, config.second_rope)
    )


def _turned_back(k_LTKD: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Return the keys of positions 0, 1, ... as they would be at position 0."""
    phases_LTD = torch.arange(k_LTKD.shape[1], device=k_LTKD.device).double()[:, None] * frequencies.double()[:, None]
    cos, sin = phases_LTD.cos().float()[:, :, None], phases_LTD.sin().float()[:, :, None]
    return apply_rope(k_LTKD, torch.cat((cos, cos), -1), torch.cat((sin, -sin), -1))


def _balanced(k_LKD: torch.Tensor, q_LKD: torch.Tensor) -> torch.Tensor:
    """Return factors by sizes of keys and queries, the same for a rotary pair, with a geometric mean of 1. Rounding
    errors of a channel count as often as its queries are large."""
    k, q = (_pair_sizes(own) for own in (k_LKD, q_LKD))
    factor_LKD = (k / q).sqrt()
    return torch.exp(factor_LKD.log() - factor_LKD.log().mean(-1, keepdim=True))


def _pair_sizes(x_LKD: torch.Tensor) -> torch.Tensor:
    low, high = x_LKD.square().chunk(2, dim=-1)
    sizes = torch.cat([((low + high) / 2).sqrt()] * 2, dim=-1)
    return sizes.maximum(_LEAST_PART * sizes.square().mean(-1, keepdim=True).sqrt()).clamp_min(1e-12)


@torch.inference_mode()
def divergence(
    model: Decoder, text: Sequence[int], dtype: torch.dtype, constants: KvConstants, *, adapter: int = 0
) -> float:
    """Return how far keys and values of `dtype` move what the model, with a LoRA adapter, predicts in the second half
    of a text: the mean KL divergence from keys and values in float32, in nats."""
    pages = list(range(-(-len(text) // PAGE_SIZE)))
    row = Row(rid="", tokens=list(text), first_position=0, pages=pages, adapter=adapter, widened=True)
    wanted, found = np.arange(len(text) // 2, len(text)), []
    for stored, own in ((torch.float32, None), (dtype, constants)):
        is_scaled = isinstance(own, KvStatistics)
        memory = KvMemory(model.config, len(pages), device=model.device, dtype=stored, is_scaled=is_scaled)
        kv = memory.layers(own)
        hidden_OE, _ = model.hidden_and_features(decoder_inputs([row], model, wanted, kv[0]), kv, ())
        found.append(model.logits(hidden_OE).float().log_softmax(-1))
    exact, moved = found
    return float((exact.exp() * (exact - moved)).sum(-1).mean())


def better_statistics(
    path: Path, model: Decoder, texts: Sequence[Sequence[int]], measured: KvStatistics
) -> tuple[KvStatistics, str]:
    """Return the statistics `measured` on a user's texts, or those of the built-in text if these lose less of the last
    long text, in the format of the fewest bits; and what was found, in words."""
    judge = [text for text in texts if len(text) >= min(len(texts[0]), TOKENS_AT_ONCE)][-1][-TOKENS_AT_ONCE:]
    built_in, _ = measure_statistics(model, [start_text(path, model.config)])
    stored = PACKED_INT4 if model.config.head_dim % 4 == 0 else torch.int8
    own, other = (divergence(model, judge, stored, statistics) for statistics in (measured, built_in))
    told = f"a KL divergence of {100 * own:.2g} % in {_NAMES[stored]}, {100 * other:.2g} % with the built-in text's"
    if other < own:
        return built_in, f"{told}, which are kept: the text is short, or of few kinds"
    return measured, told


# ---- kept from start to start ----


def kept_or_measured(path: Path, quantize: str | None, model: Decoder, tokens: list[int], group: Group) -> KvStatistics:
    """Return the statistics of `tokens`, which are kept beside the compiled loops if measuring them takes time."""
    # By ops too: those of another rounding have other statistics, which deterministic results would depend on.
    part = (model.device.type, model.ops.name, model.dtype, model.layers, model.kv_heads)
    frequencies = layer_frequencies(model.config)
    parts = _KEPT_VERSION, weights_digest(path), quantize, part, tokens, frequencies.tolist(), model.config.is_native
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
    place = loops.cache_directory(loops.loops_folder(Path(loops.__file__).parent / "kernels" / "cpu" / "ops.py"))
    file = None if place is None else place / f"kv-{name}.safetensors"
    kept = None
    if file is not None and file.is_file():
        try:
            found = load_file(file)
            kept = KvStatistics(frequencies, found["mean"], found["first"], found["factor"])
        except (SafetensorError, OSError, KeyError):
            logger.warning("%s is not readable: measured again", file)
    if group.least(int(kept is not None)):  # ranks measure together
        assert kept is not None
        return kept
    began = time.monotonic()
    statistics, _ = measure_statistics(model, [tokens], group)
    if file is not None and time.monotonic() - began > _KEPT_SECONDS:
        fresh = file.with_suffix(f".{time.time_ns()}")
        try:
            save_file(dict(zip(("mean", "first", "factor"), statistics.tensors, strict=True)), fresh)
            fresh.replace(file)  # whole or not at all: other processes read it
        except OSError as error:
            logger.warning("statistics of keys are not kept: %s", error)
    return statistics


# ---- file of `ramiform calibrate-kv` ----

_Numbers = list[list[list[float]]]  # by layer, head and channel


class StatisticsFile(msgspec.Struct, forbid_unknown_fields=True, tag_field="format", tag="ramiform KV statistics, 2"):
    """Content of the file, version 2."""

    num_tokens: Annotated[int, msgspec.Meta(ge=1)]
    k_mean: _Numbers
    k_first: _Numbers
    k_factor: _Numbers


def write_statistics(statistics: KvStatistics, num_tokens: int, file: Path) -> None:
    """Write statistics as JSON."""
    numbers = (own.tolist() for own in statistics.tensors)
    content = StatisticsFile(num_tokens, *numbers)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=0) + b"\n")


def statistics_of(content: StatisticsFile, file: Path, config: ModelConfig) -> KvStatistics:
    """Return the statistics of a file's content. Raises CheckpointError, naming file and field, when it is of another
    model."""
    if config.latent is not None:
        raise CheckpointError(file, "has statistics of keys, which are not for latent attention: it has static scales")
    shape = (config.num_kv_layers, config.num_kv_heads, config.head_dim)
    tensors = []
    for name in ("k_mean", "k_first", "k_factor"):
        rows = getattr(content, name)
        fits = len(rows) == shape[0] and all(len(heads) == shape[1] for heads in rows)
        if not fits or any(len(head) != shape[2] for heads in rows for head in heads):
            raise CheckpointError(
                file,
                f"{name} must have {shape[0]} layers of {shape[1]} KV heads of {shape[2]} channels each: the file is "
                "of another model",
            )
        tensors.append(torch.tensor(rows))
    if not (tensors[2] > 0).all():
        raise CheckpointError(file, "k_factor must be above 0")
    return KvStatistics(layer_frequencies(config), *tensors)
