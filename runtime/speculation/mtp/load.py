"""Loads a checkpoint's layers of multi-token prediction (DeepSeek-AI 2024, DeepSeek-V3, section 2.2).

Two layouts are published. DeepSeek's and GLM's layers follow the model's own, `model.layers.L` on, and each has its
norms (`enorm`, `hnorm`), its projection (`eh_proj`) and an output norm (`shared_head.norm`). Qwen's are
`mtp.layers.0` on, and share one set of those: `mtp.pre_fc_norm_embedding`, `mtp.pre_fc_norm_hidden`, `mtp.fc`,
`mtp.norm`.

Legend: L layers of the model, E hidden size, V vocabulary, T tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from ....kernels import KvCache
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ...models.decoder_inputs import DecoderInputs
from ...models.errors import CheckpointError
from ...models.gguf.file import is_gguf
from ...models.linear import DenseLinear, Destination, Linear
from ...models.load import read_tensors_into
from ...models.norm import Norm, allocate_norm
from ...models.packed_linear import pack_linear
from ...models.parallel.group import SINGLE_RANK
from ...models.parallel.stage import Stage, with_layers
from ...models.parameters import allocate_parameters, checkpoint_destinations
from ...models.stored.layout import renaming
from ...models.stored.weights import weight_files
from ...protocol.errors import RequestError

_MAX_LAYERS = 16
_SCALED = ("fp8", "compressed-tensors", "awq", "gptq")  # formats whose quantised weights come with other tensors
_SCALES = ("weight_scale_inv", "weight_scale")
_QWEN_LAYER = re.compile(r"^mtp\.layers\.(\d+)\.")


@dataclass(frozen=True)
class MtpLayout:
    """A checkpoint's layers of multi-token prediction."""

    config: ModelConfig  # the target's, with these layers behind its own
    first: int  # number of the target's own layers
    shares_joint: bool  # all layers have the same norms and projection (Qwen)
    num_bytes: int  # on the device, without KV

    @property
    def num_layers(self) -> int:
        """Number of layers of multi-token prediction."""
        return self.config.num_layers - self.first

    @property
    def kv_config(self) -> ModelConfig:
        """The config of a model of these layers alone."""
        return self._only(range(self.first, self.config.num_layers))

    def layer_config(self, place: int) -> ModelConfig:
        """Return the config of a model of one of these layers."""
        return self._only(range(self.first + place, self.first + place + 1))

    def _only(self, layers: range) -> ModelConfig:
        return replace(with_layers(self.config, layers), recurrent=None)

    def joint_modules(self, place: int) -> tuple[str, str, str, str]:
        """Return the modules of the norms of embedding and hidden state, of the projection, and of the output norm."""
        if self.shares_joint:
            return "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"
        prefix = f"model.layers.{self.first + place}"
        return f"{prefix}.enorm", f"{prefix}.hnorm", f"{prefix}.eh_proj", f"{prefix}.shared_head.norm"

    def rename(self, name: str) -> str:
        """Return the name of a tensor that is stored by Llama's name, with Qwen's layers behind the model's."""
        return _QWEN_LAYER.sub(lambda match: f"model.layers.{self.first + int(match[1])}.", name)

    def owns(self, name: str) -> bool:
        """Return True if the renamed tensor belongs to these layers."""
        layers = range(self.first, self.config.num_layers)
        return name.startswith(("mtp.", *(f"model.layers.{index}." for index in layers)))


@dataclass(frozen=True)
class MtpLayer:
    """A layer of multi-token prediction: it joins the embedding of a token with the hidden state before it."""

    embedding_norm: Norm
    hidden_norm: Norm
    joint: Linear  # 2E -> E
    decoder: Decoder  # of this layer, its output norm, and the head

    def hidden(self, inputs: DecoderInputs, before_TE: torch.Tensor, kv: KvCache) -> torch.Tensor:
        """Return the normalised hidden states [O, E] of the wanted tokens; write the KV of all tokens.

        `before_TE` are the hidden states of the positions before the tokens', normalised by the model's or the previous
        layer's output norm.
        """
        decoder = self.decoder
        embedded_TE = self.embedding_norm(decoder.embed(inputs.ids_T, inputs.positions_T), decoder.ops)
        joined_TE = self.joint(torch.cat((embedded_TE, self.hidden_norm(before_TE, decoder.ops)), dim=-1))
        stream = decoder.through_layers(joined_TE, inputs, [kv], (), {})
        return decoder.parameters.norm(stream, decoder.ops)


@dataclass(frozen=True, slots=True)
class _LayersBehind(Stage):
    """The stage of the layers behind a model's own."""

    first: int = 0

    @property
    def has_ends(self) -> bool:
        return False

    def layers(self, config: ModelConfig) -> range:
        return range(self.first, config.num_layers)


def read_mtp_layout(path: Path, target: ModelConfig) -> MtpLayout:
    """Find the layers in the checkpoint in directory `path`, whose model is `target`, without reading weights.

    Raises RequestError naming `speculative` when there are none.
    """
    stored = {} if is_gguf(path) else _stored_sizes(path)
    rename, first = renaming(target.stored), target.num_layers
    names = {rename(name): size for name, size in stored.items()}
    shares_joint = "mtp.fc.weight" in names
    pattern = r"mtp\.layers\.(\d+)\." if shares_joint else r"model\.layers\.(\d+)\.eh_proj\."
    found = {int(match[1]) for name in names if (match := re.match(pattern, name))}
    count = len(found)
    if not 1 <= count <= _MAX_LAYERS or found != set(range(count) if shares_joint else range(first, first + count)):
        raise RequestError(
            f"{path} holds no layers of multi-token prediction: no tensors model.layers.{first}.eh_proj and so on "
            "(num_nextn_predict_layers), and no mtp.*",
            param="speculative",
        )
    draft = MtpLayout(target, first, shares_joint, 0)
    renamed = {draft.rename(name) for name in names}
    experts, recurrent = target.experts, target.recurrent
    if experts is not None:
        blocks = [f"model.layers.{first + place}.{experts.names.block}.experts." for place in range(count)]
        sparse = tuple(any(name.startswith(block) for name in renamed) for block in blocks)
        experts = replace(experts, layers=experts.layers + sparse)
    if recurrent is not None:
        recurrent = replace(recurrent, layers=recurrent.layers + (False,) * count)
    quantisation = target.quantisation
    if quantisation is not None and quantisation.scheme.source in _SCALED:
        dense = tuple(_dense_modules(renamed, [f"model.layers.{first + place}." for place in range(count)]))
        quantisation = replace(quantisation, ignored=quantisation.ignored + dense)
    config = replace(
        target,
        num_layers=first + count,
        quantisation=quantisation,
        windows=target.windows + (None,) * count,
        second_rope_layers=target.second_rope_layers + (False,) * count if target.second_rope_layers else (),
        experts=experts,
        recurrent=recurrent,
    )
    layout = replace(draft, config=config)
    shared = (".embed_tokens.weight", ".shared_head.head.weight")
    own = [size for name, size in names.items() if layout.owns(layout.rename(name)) and not name.endswith(shared)]
    return replace(layout, num_bytes=sum(own))


def load_mtp(path: Path, layout: MtpLayout, target: Decoder) -> list[MtpLayer]:
    """Load the layers, in the target's dtype and on its device; they share its embedding, and its head unless they have
    another one.

    Raises CheckpointError, naming file and tensor, when they cannot be read.
    """
    config, device, dtype = layout.config, target.device, target.dtype
    group = replace(SINGLE_RANK, stage=_LayersBehind(first=layout.first))
    E, V = config.hidden_size, config.vocab_size
    try:
        parameters = allocate_parameters(
            config, device=device, dtype=dtype, group=group, groups_experts=target.ops.groups_experts
        )
        parts = checkpoint_destinations(parameters, config, group)
    except ValueError as error:
        raise CheckpointError(path, str(error)) from None

    def norm(module: str) -> Norm:
        made = allocate_norm(config.norm, E, config.norm_eps, device=device, dtype=dtype)
        parts.update(made.destinations(module))
        return made

    def joint(place: int) -> tuple[Norm, Norm, DenseLinear, Norm]:
        embedding, hidden, projection, output = layout.joint_modules(place)
        linear = DenseLinear(torch.empty((E, 2 * E), device=device, dtype=dtype))
        parts[f"{projection}.weight"] = Destination((E, 2 * E), linear.weight.copy_)
        return norm(embedding), norm(hidden), linear, norm(output)

    tables: dict[str, torch.Tensor] = {}  # stored copies of the model's embedding and head

    def table(name: str) -> None:
        parts[name] = Destination((V, E), partial(tables.__setitem__, name))

    stored = {layout.rename(name) for name in map(renaming(config.stored), _stored_sizes(path))}
    joints = [joint(0)] * layout.num_layers if layout.shares_joint else [joint(at) for at in range(layout.num_layers)]
    names = [f"model.layers.{layout.first + at}" for at in range(layout.num_layers)]
    for name in names:
        for copied in (f"{name}.embed_tokens.weight", f"{name}.shared_head.head.weight"):
            if copied in stored:
                table(copied)
    read_tensors_into(path, config, parts, lambda name: not layout.owns(name), rename=layout.rename)
    parts.clear()  # it holds the layers' first memory, which `finish` replaces
    for linear in parameters.linears():
        linear.finish()
    layers = []
    for at, (embedding_norm, hidden_norm, projection, output_norm) in enumerate(joints):
        decoder = target.of_layers(layout.layer_config(at), parameters.layers[at : at + 1], output_norm)
        embedding, head = (
            tables.pop(f"{names[at]}.{part}.weight", None) for part in ("embed_tokens", "shared_head.head")
        )
        if embedding is not None and not _is_same(embedding, target.parameters.dense_embedding()):
            raise CheckpointError(path, f"the tensor {names[at]}.embed_tokens.weight is not the model's embedding")
        if head is not None and not _is_same(head, target.parameters.dense_head()):
            decoder.head = pack_linear(DenseLinear(head.to(device, dtype)))
        layers.append(MtpLayer(embedding_norm, hidden_norm, pack_linear(projection), decoder))
    return layers


def _dense_modules(names: Collection[str], layers: Sequence[str]) -> Iterator[str]:
    """Yield the modules of the layers whose stored weights have no scales: writers list them by names of their own."""
    for name in names:
        module = name.removesuffix(".weight")
        if module != name and name.startswith(tuple(layers)) and not any(f"{module}.{end}" in names for end in _SCALES):
            yield module


def _is_same(stored: torch.Tensor, target: torch.Tensor) -> bool:
    return stored.shape == target.shape and torch.equal(stored.to(target.device, target.dtype), target)


def _stored_sizes(path: Path) -> dict[str, int]:
    """Return the bytes of each stored tensor, by its stored name."""
    sizes = {}
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                    part = tensors.get_slice(name)
                    bits = re.search(r"\d+", part.get_dtype())
                    sizes[name] = math.prod(part.get_shape()) * (int(bits[0]) if bits else 8) // 8
        except (SafetensorError, OSError) as error:
            raise CheckpointError(file, f"corrupt or truncated: {error}") from None
    return sizes
