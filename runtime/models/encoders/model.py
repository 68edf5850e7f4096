"""An encoder on a device: loads transformers' module of it, and computes batches of texts.

Legend: N texts of a batch, T tokens of the longest, E hidden size, L labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...protocol.core import EncoderOutput
from ..config_fields import ConfigFields, read_json_object
from ..errors import CheckpointError
from ..sentence_files import POOLING_FILE, check_modules, stored_pooling
from ..stored.weights import weight_files
from ..transformers_backend.config import quiet
from .table import ENCODERS, encoder_class

_INSTALL = "install ramiform[transformers]"
_MAX_LAYERS, _MAX_LABELS = 1000, 65536
_BYTES_PER_PARAMETER = 2  # of half precision: what is stored with fewer is not read
_UNCHECKED_BYTES = 1 << 28  # so much may be allocated before a truncated file is found out
_POOLING: dict[str, EncoderOutput] = {"cls": "first", "mean": "mean", "lasttoken": "last"}  # of sentence-transformers


class EncoderInput(NamedTuple):
    """The token ids of a text, or of a pair of texts; `types` says which of the two each belongs to (empty: the
    first)."""

    tokens: Sequence[int]
    types: Sequence[int]
    output: EncoderOutput


class EncoderPlan(NamedTuple):
    """Facts that config.json and the files beside it state, before weights are loaded."""

    name: str  # of the class
    module_class: Any
    options: dict[str, Any]  # of its constructor
    config: Any  # transformers' own
    output: EncoderOutput  # what the checkpoint is made for
    num_parameters: int
    context_length: int


class EncoderModel:
    """A loaded encoder."""

    def __init__(self, plan: EncoderPlan, module: Any) -> None:
        self._module = module
        self.plan = plan
        self.device: torch.device = module.device
        self.dtype: torch.dtype = module.dtype
        self.vocab_size: int = plan.config.vocab_size
        self._padding: int = getattr(plan.config, "pad_token_id", None) or 0
        self.num_types: int = getattr(plan.config, "type_vocab_size", None) or 1

    @property
    def outputs(self) -> tuple[EncoderOutput, ...]:
        """Outputs that requests may ask for: the head's logits, or states, pooled in any way."""
        return ("head",) if self.plan.output == "head" else ("first", "mean", "last")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels, in the order of their logits; none for a model without a head."""
        config = self.plan.config
        if self.plan.output != "head":
            return ()
        return tuple(str(config.id2label.get(index, f"LABEL_{index}")) for index in range(config.num_labels))

    @property
    def independent_labels(self) -> bool:
        """True if several labels may hold together."""
        return self.plan.config.problem_type == "multi_label_classification"

    @torch.inference_mode()
    def compute(self, inputs: Sequence[EncoderInput]) -> list[bytes]:
        """Return the logits or the embedding of each text, as float32, little-endian."""
        lengths = [len(each.tokens) for each in inputs]
        ids_NT = torch.full((len(inputs), max(lengths)), self._padding, dtype=torch.int64)
        types_NT = torch.zeros_like(ids_NT)
        mask_NT = torch.zeros_like(ids_NT)
        for row, each in enumerate(inputs):
            ids_NT[row, : lengths[row]] = torch.tensor(each.tokens)
            mask_NT[row, : lengths[row]] = 1
            if each.types:
                types_NT[row, : lengths[row]] = torch.tensor(each.types)
        fields = {"input_ids": ids_NT, "attention_mask": mask_NT}
        if self.num_types > 1:
            fields["token_type_ids"] = types_NT
        output = self._module(**{name: value.to(self.device) for name, value in fields.items()})
        if self.plan.output == "head":
            return [logits_L.numpy().astype("<f4").tobytes() for logits_L in output.logits.float().cpu()]
        states_NTE = output.last_hidden_state.float().cpu()
        return [
            _pooled(states_TE[:length], each.output).numpy().astype("<f4").tobytes()
            for states_TE, length, each in zip(states_NTE, lengths, inputs, strict=True)
        ]


def _pooled(states_TE: torch.Tensor, output: EncoderOutput) -> torch.Tensor:
    if output == "mean":
        return states_TE.mean(0)
    return states_TE[0 if output == "first" else -1]


def read_encoder(path: Path) -> EncoderPlan:
    """Read what the checkpoint in directory `path` is, without its weights.

    Raises CheckpointError, naming the file and the field, for what is not served.
    """
    name = encoder_class(path)
    assert name is not None, path
    family, file = ENCODERS[name], path / "config.json"
    raw = read_json_object(file)
    fields = ConfigFields(raw, file)
    fields.exactly("model_type", family.model_type)
    if raw.get("quantization_config") is not None:
        raise fields.unsupported("quantization_config", "quantised weights of an encoder are")
    layers = "n_layers" if family.model_type == "distilbert" else "num_hidden_layers"
    fields.count(layers, default=1, most=_MAX_LAYERS)
    fields.count("num_labels", default=1, most=_MAX_LABELS)
    try:
        import transformers
    except ImportError as error:
        raise CheckpointError(path, f"an encoder needs the package transformers: {_INSTALL} ({error})") from None
    module_class = getattr(transformers, name, None)
    if module_class is None:
        raise CheckpointError(path, f"transformers {transformers.__version__} has no class {name}: install a newer one")
    options = {"add_pooling_layer": False} if family.has_pooler else {}
    try:
        with quiet(transformers), torch.device("meta"):
            config = module_class.config_class.from_pretrained(path, local_files_only=True)
            num_parameters = sum(part.numel() for part in module_class(config, **options).parameters())
    except Exception as error:  # whatever a config that contradicts itself leads to
        raise CheckpointError(file, f"transformers does not make a {name} of it: {_first_line(error)}") from None
    positions = getattr(config, "max_position_embeddings", None)
    if family.counts_from_padding and isinstance(positions, int):
        positions -= 1 + (config.pad_token_id or 0)
    if not isinstance(positions, int) or positions < 1:
        raise fields.invalid("max_position_embeddings", "must leave room for a token")
    output = _checkpoint_pooling(path, name) if family.gives_states else "head"
    return EncoderPlan(name, module_class, options, config, output, num_parameters, positions)


def _checkpoint_pooling(path: Path, name: str) -> EncoderOutput:
    """Return how the checkpoint pools states. Raises CheckpointError for what is not computed, or not told."""
    mode = stored_pooling(path)
    if mode is None:
        raise CheckpointError(
            path,
            f"{name} gives a state of each token, and no {POOLING_FILE} says how they are pooled to an embedding: "
            "serve a checkpoint of sentence-transformers, or one of a class ...ForSequenceClassification",
        )
    if mode not in _POOLING:
        raise CheckpointError(path / POOLING_FILE, f"pooling by {', '.join(_POOLING)} is computed, not by {mode}")
    check_modules(path)
    return _POOLING[mode]


def load_encoder(path: Path, plan: EncoderPlan, *, device: torch.device, dtype: torch.dtype) -> EncoderModel:
    """Load the weights, from safetensors files alone. Raises CheckpointError when they are not those of the config."""
    num_bytes = sum(file.stat().st_size for file in weight_files(path))
    if plan.num_parameters * _BYTES_PER_PARAMETER > max(num_bytes, _UNCHECKED_BYTES):
        raise CheckpointError(
            path,
            f"config.json describes {plan.num_parameters:,} parameters, which {num_bytes:,} bytes of weights cannot "
            "hold",
        )
    import transformers

    try:
        with quiet(transformers):
            module, info = plan.module_class.from_pretrained(
                path,
                config=plan.config,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **plan.options,
            )
    except Exception as error:  # of any file that is missing, truncated or of another model
        raise CheckpointError(path, f"transformers does not load it: {_first_line(error)}") from None
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if info.get(problem):
            some = ", ".join(sorted(map(str, info[problem]))[:3])
            raise CheckpointError(path, f"transformers finds {problem.replace('_', ' ')}: {some}")
    return EncoderModel(plan, module.to(device).eval().requires_grad_(False))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
