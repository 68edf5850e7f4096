"""Reading of a LoRA adapter in PEFT's format, checked against the model before memory is taken. Nothing is unpickled.

Legend: E hidden size, H query heads, K key/value heads, D head size, I intermediate size, R rank, S sections of a
product's outputs, C inputs, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b
from pathlib import Path
from typing import Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from ....kernels.lora import RANK_ALIGNMENT
from ..config import ModelConfig
from ..errors import CheckpointError
from ..linear import Destination
from ..stored.layout import as_stored, renaming
from ..stored.weights import is_finite
from .peft_config import CONFIG_FILE, PeftConfig, read_peft_config

WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."

Product = Literal["qkv", "o", "gate_up", "down"]
PRODUCTS: tuple[Product, ...] = get_args(Product)
Section = tuple[int, Product, int]  # layer, product, and the section of its outputs


@dataclass(frozen=True)
class AdapterWeights:
    """An adapter's matrices for the whole model, float32 on the host, by layer and product.

    A is [S * R, C]; B is [R, O] and includes the scale. R is padded, and may differ between products.
    """

    rank: int  # the largest
    parts: dict[tuple[int, Product], tuple[torch.Tensor, torch.Tensor]]

    @cached_property
    def digest(self) -> str:
        """Digest of all matrices: equal ones give equal keys and values."""
        state = blake2b(digest_size=16)
        for key in sorted(self.parts):
            state.update(repr((key, [tuple(part.shape) for part in self.parts[key]])).encode())
            for part in self.parts[key]:
                state.update(part.numpy().data)
        return state.hexdigest()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for pair in self.parts.values() for part in pair)

    def to_bytes(self) -> bytes:
        """Return the matrices as the content of a safetensors file."""
        tensors = {f"{layer} {product}": pair for (layer, product), pair in self.parts.items()}
        named = {
            f"{name} {letter}": part for name, pair in tensors.items() for letter, part in zip("AB", pair, strict=True)
        }
        return safetensors.torch.save(named)

    @classmethod
    def from_bytes(cls, data: bytes, rank: int) -> AdapterWeights:
        """Return what `to_bytes` of another process returned."""
        named = safetensors.torch.load(data)
        keys = {name.rpartition(" ")[0] for name in named}
        layers = {(int((words := key.split())[0]), words[1]): key for key in keys}
        return cls(rank, {key: (named[f"{name} A"], named[f"{name} B"]) for key, name in layers.items()})  # type: ignore[misc]


def product_sizes(config: ModelConfig) -> dict[Product, tuple[int, tuple[int, ...]]]:
    """Return the inputs of each product, and the outputs of its sections."""
    E, H, K, D, I = (  # noqa: E741
        config.hidden_size,
        config.num_heads,
        config.num_kv_heads,
        config.head_dim,
        config.intermediate_size,
    )
    return {
        "qkv": (E, (H * D, K * D, K * D)),
        "o": (H * D, (E,)),
        "gate_up": (E, (I,) * (2 if config.gated_mlp else 1)),
        "down": (I, (E,)),
    }


def read_adapter(path: Path, config: ModelConfig, *, max_rank: int) -> AdapterWeights:
    """Read the adapter in directory `path` for the model `config`.

    Raises CheckpointError, naming the file and the field or tensor, when it is malformed, belongs to another model,
    exceeds `max_rank`, or asks for something that is not computed.
    """
    if not config.is_native:
        raise CheckpointError(path, "adapters need a native family; transformers computes this model")
    if config.latent is not None or config.recurrent is not None or config.output_gate:
        kind = "latent attention" if config.latent is not None else "recurrent layers"
        raise CheckpointError(path, f"adapters are not computed for {config.architecture}, which has {kind}")
    peft = read_peft_config(path)
    file = path / WEIGHTS_FILE
    if not file.is_file():
        pickled = " (files of pickles are not read)" if (path / "adapter_model.bin").exists() else ""
        raise CheckpointError(path, f"holds no {WEIGHTS_FILE}{pickled}")
    try:
        with safe_open(file, framework="pt") as tensors:
            shapes = {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
            reader = _AdapterReader(file, config, peft, max_rank, shapes)
            for module, names in reader.tensors.items():
                reader.take(module, *(_matrix(file, name, tensors.get_tensor(name)) for name in names))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(file, f"corrupt or truncated: {error}") from None
    return reader.weights()


def _matrix(file: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise CheckpointError(file, f"the tensor {name} is {tensor.dtype}, not floating point")
    if not is_finite(tensor):
        raise CheckpointError(file, f"the tensor {name} has values that are infinite or no numbers")
    return tensor.float()


class _AdapterReader:
    """Finds the place of each tensor of an adapter, and puts their parts together. Modules have Llama's names."""

    def __init__(
        self, file: Path, config: ModelConfig, peft: PeftConfig, max_rank: int, shapes: dict[str, tuple[int, ...]]
    ) -> None:
        """`shapes` are those of the file's tensors. Raises CheckpointError when they do not fit."""
        self._file, self._peft = file, peft
        self._sizes = product_sizes(config)
        self._a: dict[Section, torch.Tensor] = {}
        self._b: dict[Section, torch.Tensor] = {}
        self._modules = self._destinations(config)
        self._stored_names: dict[str, str] = {}
        found: dict[str, dict[str, str]] = {}
        rename = renaming(config.stored)
        for name, shape in shapes.items():
            stored, matrix = self._split(name)
            module = rename(f"{stored}.weight").removesuffix(".weight")
            if module not in self._modules:
                raise self._error(f"the tensor {name} is of no linear layer of the model's attention or dense MLPs")
            self._check_shape(name, shape, stored, module, matrix, max_rank)
            if matrix in found.setdefault(module, {}):
                raise self._error(f"the tensor {name} is stored twice")
            found[module][matrix] = name
            self._stored_names[module] = stored
        if not found:
            raise self._error("holds no tensors")
        for module in self._modules:
            if len(found.get(module, {"A": "", "B": ""})) < 2:
                raise self._error(f"{module} has only one of lora_A and lora_B")
            if module not in found and self._peft.adapts(module, int(module.split(".")[2])):
                raise self._error(f"the tensors of {module}, which target_modules names, are missing")
            if module in found and self._peft.adapts(self._stored_names[module], int(module.split(".")[2])) is False:
                raise self._error(
                    f"has tensors of {self._stored_names[module]}, which {CONFIG_FILE} leaves out by target_modules, "
                    "exclude_modules or layers_to_transform: name it there, or remove its tensors"
                )
        self.tensors = {module: (names["A"], names["B"]) for module, names in found.items()}

    def take(self, module: str, a_RC: torch.Tensor, b_OR: torch.Tensor) -> None:
        """Put the matrices of a module into the sections that it computes."""
        before = set(self._b)
        self._modules[module].put(b_OR * self._peft.scale_of(self._stored_names[module]))
        for section in set(self._b) - before:
            self._a[section] = a_RC

    def weights(self) -> AdapterWeights:
        """Return what `take` has taken."""
        parts: dict[tuple[int, Product], tuple[torch.Tensor, torch.Tensor]] = {}
        for layer, product in dict.fromkeys((layer, product) for layer, product, _ in self._a):
            inputs, sizes = self._sizes[product]
            own = {place: section for section in self._a if section[:2] == (layer, product) for place in section[2:]}
            most = max(len(self._a[section]) for section in own.values())
            rank = -(-most // RANK_ALIGNMENT) * RANK_ALIGNMENT
            a_SRC, b_RO = torch.zeros(len(sizes), rank, inputs), torch.zeros(rank, sum(sizes))
            for place, section in own.items():
                a_RC, start = self._a[section], sum(sizes[:place])
                a_SRC[place, : len(a_RC)] = a_RC
                b_RO[: len(a_RC), start : start + sizes[place]] = self._b[section].t()
            parts[layer, product] = a_SRC.flatten(0, 1), b_RO
        return AdapterWeights(max(len(a_RC) for a_RC in self._a.values()), parts)

    def _destinations(self, config: ModelConfig) -> dict[str, Destination]:
        """Return the destination of each module's B. Its shape is that of the module's weight."""
        *inner, down = config.mlp_names
        names: dict[Product, tuple[str, list[str]]] = {
            "qkv": ("self_attn", ["q_proj", "k_proj", "v_proj"]),
            "o": ("self_attn", ["o_proj"]),
            "gate_up": ("mlp", list(inner)),
            "down": ("mlp", [down]),
        }
        parts: dict[str, Destination] = {}
        for layer in range(config.num_layers):
            for product, (block, modules) in names.items():
                if block == "mlp" and config.experts is not None and config.experts.layers[layer]:
                    continue
                inputs, sizes = self._sizes[product]
                for place, (name, size) in enumerate(zip(modules, sizes, strict=True)):
                    put = partial(self._b.__setitem__, (layer, product, place))
                    parts[f"model.layers.{layer}.{block}.{name}.weight"] = Destination((size, inputs), put)
        # B has the layout of the weight, A that of the inputs; matrices of adapters are not stored transposed.
        layout = replace(config, stored=config.stored._replace(transposed=False))
        try:
            stored = as_stored(parts, layout, range(config.num_layers))
        except KeyError:  # a mixture of experts whose dense layers are stacked
            raise self._error("the family's layout is not read") from None
        return {name.removesuffix(".weight"): destination for name, destination in stored.items()}

    def _split(self, name: str) -> tuple[str, str]:
        """Return the module's stored name, and "A" or "B"."""
        for matrix in "AB":
            end = f".lora_{matrix}.weight"
            if name.startswith(_PREFIX) and name.endswith(end):
                return name[len(_PREFIX) : -len(end)], matrix
        raise self._error(f"the tensor {name} is no matrix of a LoRA adapter of a linear layer")

    def _check_shape(
        self, name: str, shape: tuple[int, ...], stored: str, module: str, matrix: str, max_rank: int
    ) -> None:
        rank, (outputs, inputs) = self._peft.rank_of(stored), self._modules[module].shape
        if rank > max_rank:
            raise self._error(f"the rank {rank} of {stored} is above max_lora_rank {max_rank}")
        wanted = (rank, inputs) if matrix == "A" else (outputs, rank)
        if shape != wanted:
            raise self._error(f"the tensor {name} has shape {shape}; the model and the adapter's rank ask for {wanted}")

    def _error(self, problem: str) -> CheckpointError:
        return CheckpointError(self._file, problem)
