"""Decoder layers and head as one compiled call a step, for blocks that `kernels.cpu.step.decoder_step` computes.

Legend: T tokens of the step, O wanted tokens, E hidden size, H query heads, K key/value heads, D head size,
L layers, S kinds of layers, F fields of a layer's record, W words of a field, X numbers of a cache's descriptor, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from ...kernels import KvCache
from ...kernels.cpu.attention.blocks import DTYPES, SINKS, kv_descriptor
from ...kernels.cpu.attention.paged import CompiledAttention
from ...kernels.cpu.attention.plan_array import COST
from ...kernels.cpu.compiled import Bytes, Floats, Ints
from ...kernels.cpu.layers import GELU, GELU_TANH, RELU, RELU2, SILU
from ...kernels.cpu.products.matmul import most_prepared
from ...kernels.cpu.products.packed_matrix import BFLOAT16_ROWS, NUM_DESCRIPTOR_WORDS, PackedMatrix, set_widening
from ...kernels.cpu.step.arguments import StepInputs, StepSettings
from ...kernels.cpu.step.decoder_step import (
    AFTER_ROPE,
    ALL_HEADS,
    ATTENTION_OUT_NORM,
    DOWN,
    EXPERTS,
    GATE_UP,
    HEAD_PHASES,
    INPUT_NORM,
    MLP_OUT_NORM,
    NUM_FIELDS,
    OTHERS,
    OUTPUT,
    PER_HEAD,
    PHASES_PER_LAYER,
    PLAN,
    POST_NORM,
    QK_NORM,
    QKV,
    ROPE,
    SLOTS,
    decoder_layers,
)
from ...kernels.cpu.step.experts import (
    CHOSEN,
    INPUTS_MEMORY,
    OWN_MEMORY,
    PRODUCTS_MEMORY,
    inputs_bytes,
    products_bytes,
)
from ...kernels.cpu.step.lora import MAX_SECTIONS, RANK
from ...kernels.cpu.step.lora import NUM_WORDS as NUM_ADAPTER_WORDS
from ...kernels.cpu.step.phases import new_phases
from ...kernels.cpu.step.store import STORED
from ...kernels.cpu.thread_pool import num_threads, run_tasks
from ...kernels.huge_pages import zeros_in_huge_pages
from .compiled_blocks import CompiledBlock, takes
from .config import ModelConfig
from .decoder_inputs import DecoderInputs
from .families.row import Activation, QkNorm
from .lora.adapters import StepAdapters
from .norm import Norm, RmsNorm
from .parameters import DecoderParameters, LayerParameters
from .rope.angles import side_by_side
from .stored.layout import reorders_outputs

# Bytes of weights that a step reads, times its tokens, from which on waking a second thread pays. A multiplication of
# attention takes as long as reading so many bytes of weights.
_MIN_SHARED_WORK = 16 << 20
_MOST_SCRATCH = 256  # numbers of rows whose views of the scratch memory are kept
_ATTENTION_BYTES = 2
_ACTIVATIONS: dict[Activation, int] = {
    "silu": SILU,
    "gelu_tanh": GELU_TANH,
    "gelu": GELU,
    "relu": RELU,
    "relu2": RELU2,
}
_QK_NORMS: dict[QkNorm | None, int] = {"all heads": ALL_HEADS, "per head after rope": AFTER_ROPE}
_FIELDS = (QKV, OUTPUT, GATE_UP, DOWN)
NO_PLAN = np.empty(0, np.int64)


class StepScratch(NamedTuple):
    """Scratch memory of a step, as in `StepSettings`, and numbers of its mixtures."""

    qkv_RC: Floats
    out_RA: Floats
    normed_RE: Floats
    y_RE: Floats
    gate_up_RJ: Floats
    gated_RI: Floats
    prepared: Bytes
    mixture: Ints


class StepResults(NamedTuple):
    """Memory that a step writes results to, and which of them are wanted."""

    wanted_O: Ints | None  # tokens of the stream after the last layer; None: all, which have the memory of the input
    last_OE: Floats  # of the wanted tokens
    captures: Sequence[int]  # layers
    captured_XTE: Floats  # of their inputs
    logits_OV: Floats | None  # None: the head is not computed


class CompiledLayers:
    """The layers' parameters as the loop reads them; `of` makes it."""

    def __init__(self, config: ModelConfig, layers: Sequence[LayerParameters], blocks: Sequence[CompiledBlock]) -> None:
        self._config = config
        self._blocks = blocks  # keeps the memory that the records point to
        self._parameters: list[Floats] = []
        self._widening: list[Ints] = []  # descriptors of matrices whose weights are widened for long prompts
        self._widens = False  # True: they are so now
        self._records_LFW: Ints = np.zeros((len(layers), NUM_FIELDS, NUM_DESCRIPTOR_WORDS), dtype=np.int64)
        for layer, block, record_FW in zip(layers, blocks, self._records_LFW, strict=True):
            for field, matrix in zip(_FIELDS, block.matrices, strict=False):  # no shared expert
                record_FW[field] = matrix.descriptor
                if matrix.widens:
                    self._widening.append(record_FW[field])
            if block.mixture is not None:
                block.mixture.write(record_FW)
            weights = [None if norm is None else _stored_weights(norm) for norm in layer.norms]
            words = (INPUT_NORM, ATTENTION_OUT_NORM, POST_NORM, MLP_OUT_NORM, QK_NORM)
            for word, weight in zip(words, [*weights, _qk_norm(layer)], strict=True):
                values = np.empty(0, np.float32) if weight is None else weight.detach().float().contiguous().numpy()
                self._parameters.append(values)
                record_FW[OTHERS, word] = values.ctypes.data if values.size else 0
        if config.norm_placement == "parallel":
            self._records_LFW[:, OTHERS, POST_NORM] = self._records_LFW[:, OTHERS, INPUT_NORM]
        self._records_LFW[:, OTHERS, ROPE] = [config.uses_second_rope(place) for place in range(len(layers))]
        self._head: PackedMatrix | None = None
        self._final_norm = np.empty(0, np.float32)
        self._rounds_stream = False
        matrices = [matrix for block in blocks for matrix in block.matrices]
        self._prepared = matrices  # whose rows are prepared
        mixtures = [block.mixture for block in blocks if block.mixture is not None]
        self._weight_bytes, self._head_bytes = sum(part.nbytes for part in (*matrices, *mixtures)), 0
        self._mixture = mixtures[0].settings if mixtures else np.empty(0, np.int64)
        self._mixture_factors = mixtures[0].factors if mixtures else np.empty(0, np.float32)
        self._sinks = [layer.sinks_H for layer in layers]
        self._memory: list[Floats] = [np.empty(0, np.float32)] * 9
        self.scratch: dict[int, StepScratch] = {}  # by the number of rows
        self._phases = new_phases(PHASES_PER_LAYER * len(layers) + HEAD_PHASES)
        self._num_slots = 1  # kinds of slots of the last step
        self.windows = list(dict.fromkeys(config.windows))  # one or two
        self._records_LFW[:, OTHERS, PLAN] = [self.windows.index(window) for window in config.windows]
        self._caches: tuple[Sequence[KvCache], Ints] | None = None

    @classmethod
    def of(cls, parameters: DecoderParameters, config: ModelConfig) -> CompiledLayers | None:
        """Return the layers of a model or stage, or None when it has none, or one that the loop does not compute.
        `config` is that of the layers."""
        if not takes(config) or reorders_outputs(config):
            return None
        blocks: list[CompiledBlock] = []
        for layer in parameters.layers:
            block = CompiledBlock.of(layer)
            if block is None or (block.mixture is not None and config.norm_placement.startswith("parallel")):
                return None
            blocks.append(block)
        return cls(config, parameters.layers, blocks) if blocks else None

    def add_head(self, norm: Norm, matrix: PackedMatrix | None) -> None:
        """Let `forward` compute logits too, if it computes them as the norm and the head do by themselves."""
        dtype = norm.weight_E.dtype
        suits = dtype == torch.float32 or (matrix is not None and matrix.descriptor[0] == BFLOAT16_ROWS)
        if matrix is None or not suits or not isinstance(norm, RmsNorm):
            return
        self._head, self._head_bytes, self._rounds_stream = matrix, matrix.nbytes, dtype == torch.bfloat16
        self._final_norm = norm.weight_E.detach().float().contiguous().numpy()
        self._prepared = [*self._prepared, matrix]

    @property
    def vocab_size(self) -> int:
        """Number of logits that `forward` can compute; 0: none."""
        return 0 if self._head is None else self._head.outputs

    def supports(self, inputs: DecoderInputs, kv: Sequence[KvCache]) -> bool:
        """Return True when the loop computes a step with these inputs and caches."""
        if inputs.pictures is not None and inputs.pictures.is_deep(self._config.hidden_size):
            return False
        return self.supports_caches(kv) and all(isinstance(one, CompiledAttention) for one in inputs.attention.values())

    def supports_caches(self, kv: Sequence[KvCache]) -> bool:
        """Return True when the loop computes steps with these caches."""
        return kv[0].basis is not None or DTYPES[kv[0].k_SKD.dtype] in STORED

    def forward(
        self,
        x_TE: torch.Tensor,
        inputs: DecoderInputs,
        kv: Sequence[KvCache],
        captures: Sequence[int],
        wanted_O: torch.Tensor | None,
        query_scales_T: torch.Tensor | None,
        *,
        with_head: bool = False,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return the residual stream after all layers, [T, E], and the inputs [T, E] of the layers `captures`.

        With `with_head`, the head's products are returned instead of the stream, in float32 [T, V] or [O, V].

        Keys and values of all tokens are stored in their slots. With `wanted_O`, and whatever `inputs` want, the stream
        is that of these tokens, [O, E]. `kv` has one entry per layer. `query_scales_T` are factors of queries in layers
        without positions. All results have the dtype of `x_TE`, which may be overwritten.
        """
        config, (T, E) = self._config, x_TE.shape
        plans = [own.plan for own in map(inputs.attention.get, self.windows) if isinstance(own, CompiledAttention)]
        slots_ST = inputs.slots_T.numpy().reshape(1, T)
        if inputs.window_slots_T is not None:
            slots_ST = np.stack((inputs.slots_T.numpy(), inputs.window_slots_T.numpy()))
        wanted = np.empty(0, np.int64) if wanted_O is None else wanted_O.numpy()
        last_plan = NO_PLAN
        if 0 < 2 * len(wanted) <= T:
            last_plan = plans[self.windows.index(config.windows[-1])].array_of(wanted)
        last_OE = np.empty((len(wanted), E), np.float32)
        logits_OV = None
        if with_head:
            assert self._head is not None
            logits_OV = np.empty((T if wanted_O is None else len(wanted), self._head.outputs), np.float32)
        captured_XTE = np.empty((len(captures), T, E), np.float32)
        x = x_TE.float().numpy()
        settings = self.settings(
            [side_by_side(parts, T, config.head_dim) for parts in zip(*inputs.angles, strict=True)],
            slots_ST,
            self.scratch_of(max(T, len(wanted))),  # a token may be wanted twice
            StepResults(None if wanted_O is None else wanted, last_OE, captures, captured_XTE, logits_OV),
            inputs.positions_T.numpy(),
            inputs.adapters,
        )
        if query_scales_T is not None:
            settings = settings._replace(query_scales_T=query_scales_T.numpy())
        caches, num_slots = self.descriptors(kv, x_TE.dtype), len(slots_ST)
        arrays = plans[0].array, plans[-1].array, last_plan
        if inputs.routes is not None:
            noted_LTK = inputs.routes.begin(T)
            self._records_LFW[:, EXPERTS, CHOSEN] = [own_TK.data_ptr() for own_TK in noted_LTK]
        self._widen(inputs.widened)
        self.compute(x, caches, arrays, settings, num_slots=num_slots, with_head=with_head)
        self._widen(False)
        if inputs.routes is not None:
            self._records_LFW[:, EXPERTS, CHOSEN] = 0
        if logits_OV is not None:
            return torch.from_numpy(logits_OV), {}
        stream = torch.from_numpy(x if wanted_O is None else last_OE).to(x_TE.dtype)
        captured = {index: torch.from_numpy(captured_XTE[place]).to(x_TE.dtype) for place, index in enumerate(captures)}
        return stream, captured

    def _widen(self, on: bool) -> None:
        """Multiply by widened weights, or by codes, from now on."""
        if on != self._widens:
            self._widens = on
            for descriptor_W in self._widening:
                set_widening(descriptor_W, on=on)

    def settings(
        self,
        angles: Sequence[Floats],
        slots_ST: Ints,
        scratch: StepScratch,
        results: StepResults,
        positions_T: Ints,
        adapters: StepAdapters | None = None,
    ) -> StepSettings:
        """Return the arguments of `decoder_layers` behind those of `StepInputs`. `angles` are cosines and sines
        [P, T, D]. Queries are not scaled."""
        config, L = self._config, len(self._records_LFW)
        wanted_O, last_OE, captures, captured_XTE, logits_OV = results
        capture_of_L = np.full(L, -1)
        for place, index in enumerate(captures):
            capture_of_L[index] = place
        records_LPAW, tokens_2N, ends_2A, sizes_PS, inner_NR = _adapter_arrays(adapters, L)
        cos_PTD, sin_PTD = angles
        return StepSettings(
            eps=config.norm_eps,
            scale=config.attention_scale,
            cap=config.attention_cap or 0.0,
            residual_scale=1.0 if config.residual_scale is None else config.residual_scale,
            activation=_ACTIVATIONS[config.activation],
            is_gated=config.gated_mlp,
            is_layer_norm=config.norm.startswith("layer_norm"),
            is_parallel=config.norm_placement.startswith("parallel"),
            qk_norm_kind=_QK_NORMS.get(config.qk_norm, PER_HEAD),
            cos_PTD=cos_PTD,
            sin_PTD=sin_PTD,
            slots_ST=slots_ST,
            wanted_O=np.empty(0, np.int64) if wanted_O is None else wanted_O,
            select=wanted_O is not None,
            last_OE=last_OE,
            capture_of_L=capture_of_L,
            captured_XTE=captured_XTE,
            adapters_LPAW=records_LPAW,
            tokens_2N=tokens_2N,
            ends_2A=ends_2A,
            sizes_PS=sizes_PS,
            inner_NR=inner_NR,
            head_W=np.empty(0, np.int64) if logits_OV is None or self._head is None else self._head.descriptor,
            final_norm=self._final_norm.ctypes.data,
            rounds_stream=self._rounds_stream,
            logits_OV=np.empty((0, 0), np.float32) if logits_OV is None else logits_OV,
            mixture_factors=self._mixture_factors,
            query_scales_T=np.empty(0, np.float32),
            positions_T=positions_T,
            **scratch._asdict(),
        )

    def compute(
        self,
        x_TE: Floats,
        kv_LX: Ints,
        plans: tuple[Ints, Ints, Ints],
        settings: StepSettings,
        *,
        num_slots: int,
        with_head: bool,
    ) -> None:
        """Compute a step in place, by as many threads as its work is worth. `kv_LX` are `descriptors`, `plans` those of
        the first and last of `windows` and of the last layer, NO_PLAN if it has that of its window; with `num_slots` 2
        windows have slots of their own."""
        config, cost = self._config, (plans[0].item(COST) + plans[1].item(COST)) // 2
        multiplications = cost * config.num_kv_heads * config.head_dim * len(kv_LX)
        num_bytes = self._weight_bytes + (self._head_bytes if with_head else 0)
        work = len(x_TE) * num_bytes + _ATTENTION_BYTES * multiplications
        threads = num_threads() if work >= _MIN_SHARED_WORK else 1
        if num_slots != self._num_slots:
            self._num_slots = num_slots
            self._records_LFW[:, OTHERS, SLOTS] = [num_slots > 1 and window is not None for window in config.windows]
        self._phases.fill(0)
        arguments = *StepInputs(x_TE, self._records_LFW, kv_LX, *plans), *settings
        run_tasks([partial(decoder_layers, self._phases, thread, threads, *arguments) for thread in range(threads)])

    def descriptors(self, kv: Sequence[KvCache], dtype: torch.dtype) -> Ints:
        """Return the caches as the loop takes them, [L, X]. `dtype` is that of the model."""
        if self._caches is None or self._caches[0] is not kv:
            self._caches = kv, np.stack([kv_descriptor(cache, dtype) for cache in kv])
            for own, sinks_H in zip(self._caches[1], self._sinks, strict=True):
                own[SINKS] = 0 if sinks_H is None else sinks_H.data_ptr()
        return self._caches[1]

    def scratch_of(self, rows: int) -> StepScratch:
        """Return scratch memory for a step: float32 [rows, numbers of a row] each, and the bytes of prepared rows.

        It is kept, because fresh memory is slow to write to. All steps share it.
        """
        if rows in self.scratch:
            return self.scratch[rows]
        config, hidden = self._config, self._config.hidden_size
        qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        size = int(self._records_LFW[:, DOWN, 2].max())  # inputs of the last matrix: the MLP's intermediate size
        num_prepared = max(-(-most_prepared(matrix.descriptor, rows) // 4) for matrix in self._prepared)
        inputs, products = self._mixture_bytes(rows, hidden)
        numbers = qkv, config.num_heads * config.head_dim, hidden, hidden, 2 * size, size
        shapes = [*((rows, number) for number in numbers), (1, num_prepared), (1, inputs // 4), (1, products // 4)]
        is_larger = any(shape[0] * shape[1] > memory.size for shape, memory in zip(shapes, self._memory, strict=True))
        if is_larger or len(self.scratch) == _MOST_SCRATCH:
            self.scratch.clear()  # views keep the memory that they are of
        views: list[Any] = []
        for place, (length, number) in enumerate(shapes):
            if self._memory[place].size < length * number:
                self._memory[place] = zeros_in_huge_pages((length * number,), torch.float32).numpy()
            views.append(self._memory[place][: length * number].reshape(length, number))
        *views, prepared_memory, inputs_memory, products_memory = views
        mixture = self._mixture.copy()
        if mixture.size:
            mixture[OWN_MEMORY] = inputs
            mixture[INPUTS_MEMORY], mixture[PRODUCTS_MEMORY] = inputs_memory.ctypes.data, products_memory.ctypes.data
        prepared = prepared_memory.reshape(-1).view(np.uint8)
        return self.scratch.setdefault(rows, StepScratch(*views, prepared, mixture))

    def _mixture_bytes(self, rows: int, hidden: int) -> tuple[int, int]:
        """Return the bytes of memory that a step's mixtures need, before and after their first products."""
        sizes = [(0, 0)]
        for record_FW, block in zip(self._records_LFW, self._blocks, strict=True):
            if block.mixture is not None:
                gates_ups, downs = block.mixture.tables
                inputs = inputs_bytes(self._mixture, gates_ups[0], rows, hidden)
                sizes.append((inputs, products_bytes(self._mixture, downs[0], record_FW[DOWN], rows, hidden)))
        inputs, products = map(max, zip(*sizes, strict=True))
        return -(-inputs // 4) * 4, -(-products // 4) * 4


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


def _qk_norm(layer: LayerParameters) -> torch.Tensor | None:
    """Return the weights of the norm of queries and keys, with factors of rotated queries behind them: a norm and a
    rotation may change places, its weights may not."""
    if layer.qk_norm_HD is None or layer.rotated_norms_2D is None:
        return layer.qk_norm_HD
    return torch.cat((layer.qk_norm_HD.flatten().float(), layer.rotated_norms_2D.float().prod(0)))


def _stored_weights(norm: Norm) -> torch.Tensor:
    """Return a norm's weights, with a layer norm's bias behind them."""
    if isinstance(norm, RmsNorm):
        return norm.weight_E
    bias_E = torch.zeros_like(norm.weight_E) if norm.bias_E is None else norm.bias_E
    return torch.cat((norm.weight_E, bias_E))
