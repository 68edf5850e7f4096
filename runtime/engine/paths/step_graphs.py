"""CUDA graphs of steps of few tokens: one launch for all kernels of a step.

A graph repeats its launches on the same memory. So there is one graph for each of some sizes, and a step is written to
static buffers. Decode steps have a graph for some numbers of rows. Other steps (short prompts and continuations, forks,
choices, verification of drafts, and any mix with decode rows) have one for some numbers of tokens: their rows are cut
into segments of a few tokens. Missing rows are padding: they have no keys, and slot -1, which is not written to. The
decoder's own forward is captured, with the collectives of its ranks; a `Capture` only decides how it is replayed.

A decode step in which rows share keys worth sharing has a graph of its own, with one more launch in each layer.

Legend: R rows, T tokens, O outputs wanted, E hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from ....kernels import Attention, Chunk, DecodeAttentionArgs, KvCache, quantised_products, to_device
from ...models.decoder import Decoder
from ...models.decoder_inputs import DecoderInputs
from ...models.parallel.group import SINGLE_RANK, Group
from ...scheduler.plan import Row
from ..kv_pool import PAGE_SIZE, KvPool
from ..last_tokens import LastTokens
from .graph_inputs import GraphShape, StaticInputs, TokenSegment, segments
from .stages import forward_on_stages

Forward = Callable[[], None]
Capture = Callable[[Forward], Forward]  # takes a forward, may run it, and returns its replay

logger = logging.getLogger("ramiform.engine")

SEGMENT_TOKENS = 8  # of a row in graphs of any rows; trees may need more
_MAX_SEGMENT_TOKENS = 64  # a bit each
# Numbers of tokens of such graphs. With more, computing takes longer than launching the kernels one by one.
_TOKEN_CLASSES = (16, 32, 64, 128, 256)


class CudaCapture:
    """Captures CUDA graphs that share one memory pool, because no two run at the same time, and one stream: libraries
    keep a workspace for each stream that they see."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def __call__(self, forward: Forward) -> Forward:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            forward()  # compilation and one-time allocations must not be in the graph
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may call CUDA meanwhile, as NCCL's watchdog does.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            forward()
        return graph.replay


def graph_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that get a decode graph, ascending. Padding is at most three rows, or half of the
    rows."""
    sizes = (1, 2, 4, 8, 12, 16, *range(24, 65, 8), *range(80, max_rows, 16))
    return [*(size for size in sizes if size < max_rows), max_rows]


def _captures_quantised(model: Decoder) -> bool:
    """Return True if no product of the model's quantised layers reads a value back from its device."""
    config, products = model.config, quantised_products(model.device)
    assert config.quantisation is not None
    if config.experts is None:
        return products is not None
    kind = torch.float8_e4m3fn if config.quantisation.scheme.kind == "fp8" else torch.int8
    return products is not None and products.reads(kind, model.device) and not model.ops.deterministic


def row_shapes(max_rows: int, max_tokens: int, segment: int) -> list[GraphShape]:
    """Return the shapes of graphs of any rows, ascending: at most `max_rows` rows of a plan, cut into segments."""
    return [
        GraphShape(min(tokens, tokens // SEGMENT_TOKENS + max_rows), tokens, min(segment, tokens))
        for tokens in _TOKEN_CLASSES
        if tokens <= max_tokens
    ]


class LargestStep(NamedTuple):
    """Sizes of the largest step that has a graph."""

    max_rows: int
    num_places: int  # tokens of a row, with those that are cached
    max_tokens: int = 0  # of graphs of any rows; 0: there are none
    max_tree: int = SEGMENT_TOKENS  # nodes of a draft tree in such graphs


class StepGraphs:
    """Graphs for steps up to a size.

    `captures` are the hidden states that the decoder captures, for a draft source.
    """

    def __init__(
        self,
        model: Decoder,
        pool: KvPool,
        largest: LargestStep,
        capture: Capture,
        *,
        captures: Sequence[int] = (),
        group: Group = SINGLE_RANK,
    ) -> None:
        self._model, self._kv, self._captures, self._capture = model, pool.layers, captures, capture
        self._group = group
        deterministic = model.ops.deterministic
        self._decoding = [GraphShape(size, size, 1) for size in graph_sizes(largest.max_rows)]
        segment = SEGMENT_TOKENS if largest.max_tree <= SEGMENT_TOKENS else _MAX_SEGMENT_TOKENS
        windows = [window for window in model.config.windows if window is not None]
        # Tiles, splits and paths of trees would differ from those of other steps.
        differs = deterministic or min(windows, default=segment) < segment
        self._any_rows = row_shapes(largest.max_rows, 0 if differs else largest.max_tokens, segment)
        self._inputs = StaticInputs(
            [*self._decoding, *self._any_rows],
            largest.num_places,
            model.device,
            finds_shared=not deterministic,
            has_windows=pool.windows is not None,
        )
        self._shares = not deterministic  # deterministic results are the same without it
        self._graphs: dict[GraphShape, Forward] = {}
        self._outputs: dict[GraphShape, tuple[torch.Tensor, torch.Tensor | None]] = {}

    @staticmethod
    def supports(model: Decoder, kv: Sequence[KvCache]) -> bool:
        """Return True if a forward of the model never reads a value back from its device."""
        config = model.config
        if not config.is_native:
            return False  # what transformers' code does is not known
        if config.recurrent is not None:
            return False  # their rows are computed one by one
        if any(isinstance(window, Chunk) for window in config.windows):
            return False  # attention in chunks is planned on the host
        if config.experts is not None and not model.ops.groups_experts:
            return False
        if config.quantisation is not None and not _captures_quantised(model):
            return False
        empty = torch.zeros((1, 1), dtype=torch.int32, device=model.device)
        args = DecodeAttentionArgs(empty, empty[0], kv[0], PAGE_SIZE, window=None)
        return model.ops.decode_attention(args) is not None

    @property
    def captured(self) -> bool:
        """True once graphs were captured: for several ranks while the engine is built, else at its warm-up."""
        return bool(self._graphs)

    @property
    def shapes(self) -> list[GraphShape]:
        """Shapes of all graphs, in the order of their capture: the largest first, whose memory the others reuse."""
        decoding = [each for shape in self._decoding for each in self._variants(shape)]
        return sorted([*decoding, *self._any_rows], key=lambda shape: (-shape.tokens, -shape.queries, -shape.shares))

    def _variants(self, shape: GraphShape) -> set[GraphShape]:
        """Return the shapes of decode steps of a size: rows may share keys, where there are two."""
        return {shape._replace(shares=shares) for shares in (False, self._shares and shape.rows > 1)}

    def capture_all(self, most: int | None = None) -> int:
        """Capture all graphs, or the `most` largest; return how many were. Those for which the device lacks memory, on
        any rank, are left out."""
        missing: list[GraphShape] = []
        for shape in self.shapes[:most]:
            self._inputs.fill_padding(shape)
            try:
                replay = self._capture(partial(self._forward, shape))
            except torch.OutOfMemoryError:
                replay = None
            if self._group.least(int(replay is not None)) and replay is not None:
                self._graphs[shape] = replay
            else:
                missing.append(shape)
                self._outputs.pop(shape, None)
        if missing:
            self._decoding = [shape for shape in self._decoding if self._variants(shape) <= self._graphs.keys()]
            self._any_rows = [shape for shape in self._any_rows if shape in self._graphs]
            logger.warning(
                "no memory for %d of %d CUDA graphs: steps of more than %d rows are launched kernel by kernel. "
                "Lower mem_fraction, kv_memory or max_running",
                len(missing),
                len(missing) + len(self._graphs),
                max((shape.rows for shape in self._decoding), default=0),
            )
        return len(self._graphs)

    def hidden_and_features(
        self,
        rows: Sequence[Row],
        wanted: np.ndarray,
        last_tokens: LastTokens,
        *,
        features: bool,
        before: Callable[[], None] = lambda: None,
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Run the graph of the rows and return what `Decoder.hidden_and_features` returns; None if there is none.

        The hidden states are those of the tokens `wanted`, valid until the next call. Features, if wanted, are copies,
        since a draft source keeps them for later. `last_tokens` are those of the last step. `before` is called before
        a replay.
        """
        if not self._graphs:
            return None
        num_tokens = sum(len(row.tokens) for row in rows)
        if num_tokens == len(rows):
            shape = next((shape for shape in self._decoding if shape.rows >= num_tokens), None)
            if shape is None:
                return None
            shape = shape._replace(shares=self._inputs.fill_decode(rows, last_tokens, shape))
        else:
            found = self._shape_of(rows, num_tokens)
            if found is None:
                return None
            shape, cut = found
            self._inputs.fill_rows(rows, cut, wanted, last_tokens, shape)
        before()
        self._graphs[shape]()
        hidden_TE, features_TE = self._outputs[shape]
        if not self._group.stage.has_ends:
            return hidden_TE, None
        if shape.queries == 1 and not np.array_equal(wanted, np.arange(len(wanted))):
            hidden_TE = hidden_TE[to_device([wanted], hidden_TE.device)[0]]
        kept_TE = features_TE[:num_tokens].clone() if features and features_TE is not None else None
        return hidden_TE[: len(wanted)], kept_TE

    def _shape_of(self, rows: Sequence[Row], num_tokens: int) -> tuple[GraphShape, list[TokenSegment]] | None:
        """Return the smallest shape that holds the rows, and their segments."""
        for shape in self._any_rows:
            if shape.tokens >= num_tokens and (cut := segments(rows, shape.queries)) is not None:
                num_padding = -(-(shape.tokens - num_tokens) // shape.queries)
                if len(cut) + num_padding <= shape.rows:
                    return shape, cut
        return None

    def _forward(self, shape: GraphShape) -> None:
        model, step = self._model, self._inputs.tensors(shape)
        self._inputs.tables.write(step.places_D, step.pages_D)
        windows = self._inputs.window_tables
        if windows is not None:
            windows.write(step.window_places_D, step.window_pages_D)
        inputs = DecoderInputs(
            ids_T=self._inputs.ids(step),
            positions_T=step.positions_T,
            angles=model.angles(step.positions_T, step.positions_T + 1),
            slots_T=step.slots_T,
            window_slots_T=None if windows is None else step.window_slots_T,
            attention=dict(self._attention(shape)),
            wanted_O=step.wanted_T if shape.queries > 1 else None,
        )
        self._outputs[shape] = forward_on_stages(inputs, model, self._kv, self._group, self._captures)

    def _attention(self, shape: GraphShape) -> Iterator[tuple[int | None, Attention]]:
        for window in set(self._model.config.windows):
            attention = self._model.ops.decode_attention(self._inputs.attention(shape, self._kv[0], window))
            assert attention is not None
            yield window, attention
