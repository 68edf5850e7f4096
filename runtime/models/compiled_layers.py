"""Decoder layers and head as one compiled call a step, for blocks that `kernels.cpu.decoder_step` computes.

Legend: T tokens of the step, O wanted tokens, E hidden size, H query heads, K key/value heads, D head size,
L layers, S kinds of layers, F fields of a layer's record, W words of a field, X numbers of a cache's descriptor, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from ...kernels import Attention, KvCache
from ...kernels.cpu.attention import CompiledAttention, kv_descriptor
from ...kernels.cpu.attention_plan import COST
from ...kernels.cpu.block_parts import GELU, GELU_TANH, RELU, RELU2, SILU
from ...kernels.cpu.compiled import Floats, Ints
from ...kernels.cpu.decoder_step import (
    ATTENTION_OUT_NORM,
    DOWN,
    GATE_UP,
    HEAD_PHASES,
    INPUT_NORM,
    MLP_OUT_NORM,
    NUM_FIELDS,
    NUM_WORDS,
    OTHERS,
    OUTPUT,
    PHASES_PER_LAYER,
    PLAN,
    POST_NORM,
    QK_NORM,
    QKV,
    ROPE,
    SLOTS,
    decoder_layers,
)
from ...kernels.cpu.lora import MAX_SECTIONS, RANK
from ...kernels.cpu.lora import NUM_WORDS as NUM_ADAPTER_WORDS
from ...kernels.cpu.matmul import prepared_size
from ...kernels.cpu.packed_matrix import BFLOAT16_ROWS, PackedMatrix
from ...kernels.cpu.shared_phases import new_phases
from ...kernels.cpu.thread_pool import num_threads, run_tasks
from .config import ModelConfig
from .families.row import Activation
from .lora.adapters import StepAdapters
from .mlp import DenseMlp
from .norm import Norm, RmsNorm
from .packed_linear import packed_matrices
from .parameters import DecoderParameters, LayerParameters
from .stored_layout import reorders_outputs

# Bytes of weights that a step reads, times its tokens, from which on waking a second thread pays. A multiplication of
# attention takes as long as reading so many bytes of weights.
_MIN_SHARED_WORK = 16 << 20
_ATTENTION_BYTES = 2
_ACTIVATIONS: dict[Activation, int] = {
    "silu": SILU,
    "gelu_tanh": GELU_TANH,
    "gelu": GELU,
    "relu": RELU,
    "relu2": RELU2,
}
_KV_DTYPES = (torch.float32, torch.bfloat16)


class CompiledLayers:
    """The layers' parameters as the loop reads them; `of` makes it."""

    def __init__(
        self, config: ModelConfig, layers: Sequence[LayerParameters], matrices: Sequence[PackedMatrix]
    ) -> None:
        """`matrices` are those of all layers in order: qkv, output, gate and up, down."""
        self._config = config
        self._matrices = matrices  # keeps the memory that the records point to
        self._parameters: list[Floats] = []
        self._records_LFW: Ints = np.zeros((len(layers), NUM_FIELDS, NUM_WORDS), dtype=np.int64)
        for layer, record_FW in zip(layers, self._records_LFW, strict=True):
            place = 4 * (len(self._parameters) // 5)
            for field, matrix in zip((QKV, OUTPUT, GATE_UP, DOWN), matrices[place : place + 4], strict=True):
                record_FW[field] = matrix.descriptor
            weights = [None if norm is None else _stored_weights(norm) for norm in layer.norms]
            words = (INPUT_NORM, ATTENTION_OUT_NORM, POST_NORM, MLP_OUT_NORM, QK_NORM)
            for word, weight in zip(words, [*weights, layer.qk_norm_HD], strict=True):
                values = np.empty(0, np.float32) if weight is None else weight.detach().float().contiguous().numpy()
                self._parameters.append(values)
                record_FW[OTHERS, word] = values.ctypes.data if values.size else 0
        if config.norm_placement == "parallel":
            self._records_LFW[:, OTHERS, POST_NORM] = self._records_LFW[:, OTHERS, INPUT_NORM]
        self._records_LFW[:, OTHERS, ROPE] = [config.uses_second_rope(place) for place in range(len(layers))]
        self._head: PackedMatrix | None = None
        self._final_norm = np.empty(0, np.float32)
        self._rounds_stream = False
        self._widest = max(matrices, key=lambda matrix: prepared_size(matrix.descriptor, 1))  # prepared rows
        self._weight_bytes = sum(matrix.nbytes for matrix in matrices)
        self._memory: list[Floats] = [np.empty(0, np.float32)] * 7
        self._scratch: tuple[int, list[Any]] = -1, []  # views of the memory for a number of rows
        self._caches: tuple[Sequence[KvCache], Ints] | None = None

    @classmethod
    def of(cls, parameters: DecoderParameters, config: ModelConfig) -> CompiledLayers | None:
        """Return the layers of a model or stage, or None when it has none, or one that the loop does not compute.
        `config` is that of the layers."""
        if config.latent is not None:
            return None
        matrices: list[PackedMatrix] = []
        if config.output_gate or reorders_outputs(config):
            return None
        for layer in parameters.layers:
            mlp = layer.mlp
            if not _is_compiled_block(layer) or not isinstance(mlp, DenseMlp):
                return None
            products = packed_matrices([layer.qkv, layer.o, mlp.gate_up, mlp.down])
            if products is None:
                return None
            matrices += products
        if len({matrix.inputs for matrix in matrices[3::4]}) > 1:  # scratch memory is that of one intermediate size
            return None
        if not matrices or config.qk_norm == "layer norm per head" or len(set(config.windows)) > 2:
            return None
        return cls(config, parameters.layers, matrices)

    def add_head(self, norm: Norm, matrix: PackedMatrix | None) -> None:
        """Let `forward` compute logits too, if it computes them as the norm and the head do by themselves."""
        dtype = norm.weight_E.dtype
        suits = dtype == torch.float32 or (matrix is not None and matrix.descriptor[0] == BFLOAT16_ROWS)
        if matrix is None or not suits or not isinstance(norm, RmsNorm):
            return
        self._head, self._rounds_stream = matrix, dtype == torch.bfloat16
        self._final_norm = norm.weight_E.detach().float().contiguous().numpy()
        self._widest = max(self._widest, matrix, key=lambda matrix: prepared_size(matrix.descriptor, 1))

    @property
    def has_head(self) -> bool:
        """True if `forward` can compute logits."""
        return self._head is not None

    def supports(self, attentions: Mapping[int | None, Attention], kv: Sequence[KvCache]) -> bool:
        """Return True when the loop computes a step with these attentions and caches."""
        return (
            kv[0].k_SKD.dtype in _KV_DTYPES
            and kv[0].k_scale_K is None
            and all(isinstance(attention, CompiledAttention) for attention in attentions.values())
        )

    def forward(
        self,
        x_TE: torch.Tensor,
        angles: Sequence[tuple[torch.Tensor, torch.Tensor]],
        slots_T: torch.Tensor,
        window_slots_T: torch.Tensor | None,
        kv: Sequence[KvCache],
        attentions: Mapping[int | None, Attention],
        captures: Sequence[int],
        wanted_O: torch.Tensor | None,
        adapters: StepAdapters | None = None,
        *,
        with_head: bool = False,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return the residual stream after all layers, [T, E], and the inputs [T, E] of the layers `captures`.

        With `with_head`, the head's products are returned instead of the stream, in float32 [T, V] or [O, V].

        Keys and values of all tokens are stored in their slots. With `wanted_O` the stream is that of these tokens,
        [O, E]. `window_slots_T` are those of layers with a window, None: the same. `kv` has one entry per layer,
        `attentions` one per window. All results have the dtype of `x_TE`, which may be overwritten.
        """
        config, L, (T, E) = self._config, len(self._records_LFW), x_TE.shape
        H, K, D = config.num_heads, config.num_kv_heads, config.head_dim
        arrays = [attention.plan.array for attention in attentions.values() if isinstance(attention, CompiledAttention)]
        if len(arrays) > 1:  # a window
            self._records_LFW[:, OTHERS, PLAN] = [list(attentions).index(window) for window in config.windows]

        slots_ST = slots_T.numpy().reshape(1, T)
        if window_slots_T is not None:
            slots_ST = np.stack((slots_T.numpy(), window_slots_T.numpy()))
            self._records_LFW[:, OTHERS, SLOTS] = [window is not None for window in config.windows]

        x = x_TE.float().numpy()
        wanted = np.empty(0, np.int64) if wanted_O is None else wanted_O.numpy()
        last_OE = np.empty((len(wanted), E), np.float32)
        capture_of_L = np.full(L, -1)
        for place, index in enumerate(captures):
            capture_of_L[index] = place
        captured_XTE = np.empty((len(captures), T, E), np.float32)
        rows = max(T, len(wanted))  # a token may be wanted twice
        multiplications = sum(int(array[COST]) for array in arrays) * K * D * L // len(arrays)
        head = self._head if with_head else None
        head_W, logits_OV = np.empty(0, np.int64), np.empty((0, 0), np.float32)
        if with_head:
            assert head is not None
            head_W, logits_OV = (
                head.descriptor,
                np.empty((T if wanted_O is None else len(wanted), head.outputs), np.float32),
            )
        work = T * (self._weight_bytes + (0 if head is None else head.nbytes)) + _ATTENTION_BYTES * multiplications
        threads = num_threads() if work >= _MIN_SHARED_WORK else 1
        phases = new_phases(PHASES_PER_LAYER * L + HEAD_PHASES)
        arguments = (
            threads,
            x,
            self._records_LFW,
            self._descriptors(kv, x_TE.dtype),
            arrays[0],
            arrays[-1],
            config.norm_eps,
            config.attention_scale,
            config.attention_cap or 0.0,
            1.0 if config.residual_scale is None else config.residual_scale,
            _ACTIVATIONS[config.activation],
            config.gated_mlp,
            config.norm.startswith("layer_norm"),
            config.norm_placement.startswith("parallel"),
            config.qk_norm == "all heads",
            *(_side_by_side(parts, T, D) for parts in zip(*angles, strict=True)),
            slots_ST,
            wanted,
            wanted_O is not None,
            last_OE,
            *self._scratch_of(rows, (H + 2 * K) * D, H * D, E),
            capture_of_L,
            captured_XTE,
            *_adapter_arrays(adapters, L),
            head_W,
            self._final_norm.ctypes.data,
            self._rounds_stream,
            logits_OV,
        )
        run_tasks([partial(decoder_layers, phases, thread, *arguments) for thread in range(threads)])
        if with_head:
            return torch.from_numpy(logits_OV), {}
        stream = torch.from_numpy(x if wanted_O is None else last_OE).to(x_TE.dtype)
        captured = {index: torch.from_numpy(captured_XTE[place]).to(x_TE.dtype) for place, index in enumerate(captures)}
        return stream, captured

    def _descriptors(self, kv: Sequence[KvCache], dtype: torch.dtype) -> Ints:
        """Return the caches as the loop takes them, [L, X]. `dtype` is that of the model."""
        if self._caches is None or self._caches[0] is not kv:
            self._caches = kv, np.stack([kv_descriptor(cache, dtype) for cache in kv])
        return self._caches[1]

    def _scratch_of(self, rows: int, qkv: int, attention: int, hidden: int) -> list[Any]:
        """Return scratch memory for a step: float32 [rows, numbers of a row] each, and the bytes of prepared rows.

        It is kept, because fresh memory is slow to write to.
        """
        if self._scratch[0] != rows:
            size = int(self._records_LFW[0, DOWN, 2])  # inputs of the last matrix: the MLP's intermediate size
            prepared = -(-prepared_size(self._widest.descriptor, rows) // 4)
            shapes = [(rows, numbers) for numbers in (qkv, attention, hidden, hidden, 2 * size, size)]
            views: list[Any] = []
            for place, shape in enumerate([*shapes, (1, prepared)]):
                numbers = shape[0] * shape[1]
                if self._memory[place].size < numbers:
                    self._memory[place] = np.empty(numbers, np.float32)
                views.append(self._memory[place][:numbers].reshape(shape))
            views[-1] = views[-1].reshape(-1).view(np.uint8)
            self._scratch = rows, views
        return self._scratch[1]


def _adapter_arrays(adapters: StepAdapters | None, L: int) -> list[Any]:
    """Return the adapters of a step as the loop takes them: records, tokens, their ends, sizes, and scratch memory."""
    if adapters is None:
        empty = np.empty((2, 0), np.int64)
        return [
            np.empty((L, 4, 0, NUM_ADAPTER_WORDS), np.int64),
            empty,
            empty,
            np.zeros((4, 3), np.int64),
            np.empty((0, 0), np.float32),
        ]
    segments = adapters.tokens, adapters.wanted
    num_rows = max(len(own.tokens_N) for own in segments)
    tokens_2N = np.zeros((2, num_rows), np.int64)
    for place, own in enumerate(segments):
        tokens_2N[place, : len(own.tokens_N)] = own.tokens_N.numpy()
    records_LPAW = adapters.layers.records(adapters.tokens.places)
    most = MAX_SECTIONS * int(records_LPAW[..., RANK].max(initial=0))
    ends_2A = np.array([own.ends for own in segments], dtype=np.int64)
    inner_NR = np.empty((num_rows, most), np.float32)
    return [records_LPAW, tokens_2N, ends_2A, adapters.layers.section_sizes, inner_NR]


def _stored_weights(norm: Norm) -> torch.Tensor:
    """Return a norm's weights, with a layer norm's bias behind them."""
    if isinstance(norm, RmsNorm):
        return norm.weight_E
    bias_E = torch.zeros_like(norm.weight_E) if norm.bias_E is None else norm.bias_E
    return torch.cat((norm.weight_E, bias_E))


def _side_by_side(parts_T1D: Sequence[torch.Tensor], T: int, D: int) -> Floats:
    """Return cosines or sines of each rope, [P, T, D]."""
    if len(parts_T1D) == 1:
        return parts_T1D[0].float().numpy().reshape(1, T, D)
    return np.stack([part.float().numpy().reshape(T, D) for part in parts_T1D])


def _is_compiled_block(layer: LayerParameters) -> bool:
    """Return True for a block with a dense MLP: without a gate, or with one of silu or of gelu by tanh."""
    mlp = layer.mlp
    if layer.recurrent is not None or layer.sinks_H is not None or layer.rotated_norms_2D is not None:
        return False
    return isinstance(mlp, DenseMlp) and (not mlp.gated or mlp.activation in ("silu", "gelu_tanh"))
