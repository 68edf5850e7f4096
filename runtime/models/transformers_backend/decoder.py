"""A decoder whose layers transformers computes, behind the interface of `models.decoder`.

A loaded model is tried on a few tokens: what it computes in two chunks with paged KV must be what transformers computes
in one pass by itself. So a model that keeps any other state, or attends otherwise, is refused when it is loaded.

Legend: T tokens of the step, O outputs wanted, E hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ....kernels import AttentionArgs, KvCache, Ops, RowSpan, for_device
from ...protocol.config import PAGE_SIZE
from ..config import ModelConfig
from ..decoder import Decoder
from ..decoder_inputs import DecoderInputs
from ..errors import CheckpointError
from ..rope.angles import Rope
from ..stored.weights import Progress
from .attention import NAME, AttentionProbe, NotServed, PagedAttention, set_owner
from .config import is_packed_gpt_oss, load_package, probed_shape, quiet, read_transformers_config

_TRIAL_TOKENS, _TRIAL_CHUNK = 24, 17
# Largest difference of the trial's logits from transformers' own, relative to their norm.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


class TransformersDecoder(Decoder):
    """A causal language model of transformers, on one device."""

    def __init__(self, config: ModelConfig, model: Any, ops: Ops | None = None) -> None:
        """`model` is loaded, with the attention implementation `attention.NAME`. Raises NotServed when it cannot be
        served exactly."""
        self._model, self.states = model, None
        self.device, self.dtype = model.device, model.dtype
        probe = AttentionProbe()
        set_owner(model, probe)
        with torch.inference_mode():
            self._states(torch.zeros(2, dtype=torch.int64, device=self.device), torch.arange(2, device=self.device))
        shape = probed_shape(probe, config.num_layers)
        assert shape is not None
        sizes = shape.num_heads, shape.num_kv_heads, max(shape.key_dim, shape.value_dim)
        if sizes != (config.num_heads, config.num_kv_heads, config.head_dim):
            raise NotServed(f"its layers have heads of {sizes}, its config says otherwise")
        windows = tuple(own.window for own in probe.shapes)
        own = model.config
        if not any(windows) and "sliding_attention" in (getattr(own, "layer_types", None) or ()):
            raise NotServed("it does not pass its sliding window to attention")
        self.config = self.whole_config = replace(config, windows=windows, attention_cap=shape.cap)
        self.layers, self.kv_heads = range(config.num_layers), slice(0, config.num_kv_heads)
        self.rope = Rope(config.rope, 2, device=self.device, dtype=self.dtype)
        assert config.counted_parameters is not None
        self.num_parameters = config.counted_parameters
        self.ops = for_device(self.device, attention_cap=shape.cap) if ops is None else ops
        if self.ops.attention_cap != shape.cap:
            raise NotServed(f"it caps attention scores at {shape.cap}, which its config does not say")
        self._paged = PagedAttention(probe)
        set_owner(model, self._paged)
        self._head = _with_states(model)
        self._try()

    @property
    def widens(self) -> bool:
        """False: transformers' layers are not told which rows are a long prompt's."""
        return False

    def use_loops(self) -> None:
        """Attend with compiled loops from the next step on."""
        if self.ops.name == "plain-cpu":
            self.ops = for_device(self.device, attention_cap=self.ops.attention_cap)

    def angles(self, positions: torch.Tensor, lengths: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Return nothing: the model rotates by itself."""
        return ()

    def hidden_and_features(
        self, inputs: DecoderInputs, kv: Sequence[KvCache], captures: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        assert not captures, "hidden states of transformers' layers are not captured"
        self._paged.begin(inputs, kv)
        hidden_TE = self._states(inputs.ids_T, inputs.positions_T)
        return (hidden_TE if inputs.wanted_O is None else hidden_TE[inputs.wanted_O]), None

    def logits(self, hidden_OE: torch.Tensor) -> torch.Tensor:
        """Return the logits [O, V] in float32, with whatever the model's class does to them."""
        if not len(hidden_OE):
            return hidden_OE.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        states = getattr(self._head, self._model.base_model_prefix)
        states.hidden_1OE = hidden_OE[None]
        tokens = torch.zeros((1, len(hidden_OE)), dtype=torch.int64, device=self.device)
        logits: torch.Tensor = self._head(input_ids=tokens, use_cache=False).logits
        return logits[0].float()

    def _states(self, ids_T: torch.Tensor, positions_T: torch.Tensor) -> torch.Tensor:
        output = self._model.base_model(input_ids=ids_T[None], position_ids=positions_T[None], use_cache=False)
        states: torch.Tensor = output.last_hidden_state[0]
        return states

    @torch.inference_mode()
    def _try(self) -> None:
        """Raise NotServed when two chunks with paged KV differ from transformers' own pass."""
        config, device = self.config, self.device
        generator = torch.Generator().manual_seed(0)
        ids_T = torch.randint(config.vocab_size, (_TRIAL_TOKENS,), generator=generator).to(device)
        self._model.set_attn_implementation("eager")
        try:
            want = self._model(input_ids=ids_T[None], use_cache=False).logits[0].float()
        finally:
            self._model.set_attn_implementation(NAME)
        shape = (config.num_layers, 2 * PAGE_SIZE, config.num_kv_heads, config.head_dim)
        k, v = torch.zeros((2, *shape), device=device, dtype=self.dtype)
        kv = tuple(map(KvCache, k.unbind(), v.unbind()))
        bounds = ((0, _TRIAL_CHUNK), (_TRIAL_CHUNK, _TRIAL_TOKENS))
        got = torch.cat([self._trial_logits(ids_T, start, end, kv) for start, end in bounds])
        error = float((got - want).norm() / want.norm())
        if not error <= _TOLERANCE[self.dtype]:
            raise NotServed(f"in chunks with paged KV it computes other logits than by itself (by {error:.2g} of them)")

    def _trial_logits(self, ids_T: torch.Tensor, start: int, end: int, kv: Sequence[KvCache]) -> torch.Tensor:
        span = RowSpan(start, end - start, np.arange(2))
        places = torch.arange(start, end, device=self.device)
        attention = {
            window: self.ops.attention(
                AttentionArgs([span], kv[0], self.config.num_heads, PAGE_SIZE, window, self.dtype)
            )
            for window in set(self.config.windows)
        }
        inputs = DecoderInputs(ids_T[start:end], places, (), places, attention, None)
        return self.logits(self.hidden(inputs, kv))


class _GivenStates(nn.Module):
    """Stands for the model below the head: returns the hidden states that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden_1OE: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return self  # a class may call a part of the model below its head, such as OPT's decoder

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return _Output(self.hidden_1OE)


class _Output:
    """Output of `_GivenStates`: hidden states by name or index, and None for whatever else a class asks for."""

    def __init__(self, hidden_1OE: torch.Tensor | None) -> None:
        self.last_hidden_state = hidden_1OE

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


def _with_states(model: Any) -> Any:
    """Return the model with its layers replaced by `_GivenStates`: head, scales and caps as its class applies them."""
    head = copy.copy(model)
    head.__dict__ = dict(model.__dict__)
    head._modules = dict(model._modules)
    if model.base_model_prefix not in head._modules:
        raise NotServed(f"{type(model).__name__} has no base model below its head")
    head._modules[model.base_model_prefix] = _GivenStates()
    return head


def load_transformers_model(
    path: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    ops: Ops | None = None,
    on_progress: Progress | None = None,
) -> TransformersDecoder:
    """Load the checkpoint in directory `path`. Raises CheckpointError with the reason when it cannot be served."""
    config = read_transformers_config(path)
    transformers = load_package()
    placed: dict[str, Any] = {} if device.type == "cpu" else {"device_map": {"": device}}
    own = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    if is_packed_gpt_oss(own):
        from .mxfp4 import METHOD  # here, because it imports transformers

        own.quantization_config = {"quant_method": METHOD}
        placed["config"] = own
    try:
        with quiet(transformers):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                path,
                dtype=dtype,
                attn_implementation=NAME,
                trust_remote_code=False,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                **placed,
            )
    except Exception as error:  # of any file that is missing, truncated or of another model
        raise CheckpointError(path, f"transformers does not load it: {error}") from None
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if info.get(problem):
            some = ", ".join(sorted(map(str, info[problem]))[:3])
            raise CheckpointError(path, f"transformers finds {problem.replace('_', ' ')}: {some}")
    if on_progress is not None:
        on_progress(1, 1)
    try:
        return TransformersDecoder(config, model.eval().requires_grad_(False), ops)
    except NotServed as error:
        raise CheckpointError(path, f"transformers' class of it cannot be served: {error}") from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(path, f"transformers' class of it fails with paged KV: {reason}") from error
