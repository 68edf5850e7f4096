"""Compute decode steps on a CPU with few Python calls: compiled loops read and write arrays kept between steps.

A small model computes such a step in less time than it takes to build tensors of its inputs.

Legend: R rows, P pages of a row, S kinds of layers, E hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ....kernels.cpu.attention.paged import heads_together
from ....kernels.cpu.attention.plan import window_number
from ....kernels.cpu.compiled import Floats, Ints
from ....kernels.cpu.sampling import sample_rows
from ....kernels.cpu.step.arguments import StepSettings
from ....kernels.cpu.step.decoder_step import decode_inputs
from ....kernels.cpu.thread_pool import num_threads, share_rows
from ...models.compiled_layers import NO_PLAN, CompiledLayers, StepResults, StepScratch
from ...models.rope.angles import side_by_side
from ...scheduler.plan import PENDING, Row, Sample
from ..kv_pool import PAGE_SIZE
from ..last_tokens import LastTokens
from ..needs import Need
from .path import EngineParts, Forward, Path, Sampled, next_sample

_ROWS: frozenset[Need] = frozenset({"Row.follows", "Row.window_pages", "Row.rope_offset"})


class PageTableArray:
    """Page tables of rows as one array [R, P]. Most rows have the pages that they had in the step before."""

    def __init__(self) -> None:
        self.pages_RP: Ints = np.zeros((1, 16), np.int64)
        self._kept_R: list[list[int]] = [[]]

    def update(self, pages_R: Sequence[list[int]]) -> bool:
        """Write the rows' pages; return True if the array is a new one."""
        (most, width), count, longest = self.pages_RP.shape, len(pages_R), max(map(len, pages_R))
        grows = count > most or longest > width
        if grows:  # each side by itself: with twice the rows for each longer row, the table would be huge
            most = most if count <= most else max(2 * most, count)
            width = width if longest <= width else max(2 * width, longest)
            self.pages_RP, self._kept_R = np.zeros((most, width), np.int64), [[]] * most
        kept_R = self._kept_R
        for row, pages in enumerate(pages_R):
            if pages != kept_R[row]:
                kept_R[row] = pages.copy()
                self.pages_RP[row, : len(pages)] = pages
        return grows


class _Memory(NamedTuple):
    """Holds the arrays and arguments of steps with one number of rows, kept from step to step."""

    tokens_2R: Ints  # and positions
    x_RE: Floats
    logits_RV: torch.Tensor
    sampling: tuple[Floats, Floats, Ints, Ints]  # temperatures, min_ps and draws of rows, and their tokens
    num_slots: int
    inputs: tuple[Any, ...]  # arguments of `decode_inputs`
    angles: list[Floats]  # cosines and sines, [ropes, R, D]
    scratch: StepScratch
    settings: StepSettings


class KeptArrays(Path):
    """Computes steps in which each row has one token and samples one, or may.

    It samples by itself where the needs of sampling are in `samples`: argmax, or a draw from all tokens or those of
    `min_p`.
    """

    name = "kept arrays"
    samples: frozenset[Need] = frozenset({"Sample.min_p"})

    def __init__(self, parts: EngineParts, layers: CompiledLayers) -> None:
        super().__init__(parts)
        self.computes = _ROWS if parts.source is not None else _ROWS | {"ForwardPlan.followed"}
        self.layers, self.kv = layers, parts.pool.layers
        self._model = model = parts.model
        self._pages, self._window_pages = PageTableArray(), PageTableArray()
        self._memory: dict[tuple[int, int], _Memory] = {}  # by rows and kinds of slots
        self._now: _Memory | None = None
        self._longest = 0  # tokens of a row
        self._rope_offsets: Ints | None = None  # of the rows; None: all are 0
        self._cos: Floats = np.empty((len(model.ropes), 0, model.config.head_dim), np.float32)
        self._sin = self._cos
        self._x_RE, self._logits_RV, self._angles = (np.empty((0, 0), np.float32) for _ in range(3))
        self._settings = (
            np.array([window_number(window) for window in layers.windows]),
            PAGE_SIZE,
            model.config.num_heads // model.config.num_kv_heads,
            heads_together(self.kv[0]),
        )
        embedding, scale = model.parameters.embedding_VE, model.embedding_scale
        self._embeds = (
            isinstance(embedding, torch.Tensor)
            and embedding.is_contiguous()
            and embedding.dtype in (torch.float32, torch.bfloat16)
            and model.parameters.positions_PE is None
        )
        self._embedding = (
            embedding.data_ptr() if isinstance(embedding, torch.Tensor) and self._embeds else 0,
            model.dtype == torch.bfloat16,
            model.parameters.num_embedded,
            1.0 if scale is None else scale,
        )

    @classmethod
    def of(cls, parts: EngineParts) -> KeptArrays | None:
        """Return the path; None if layers and head are not one compiled call over these caches, on one rank, or an
        angle depends on more than a token's position."""
        model, layers = parts.model, parts.model.compiled_head
        if layers is None or parts.group.stage.size > 1 or parts.group.shard.size > 1:
            return None
        if not layers.supports_caches(parts.pool.layers) or model.config.streaming is not None:
            return None
        return None if any(rope.depends_on_length for rope in model.ropes) else cls(parts, layers)

    def forward(self, rows: list[Row], last_tokens: LastTokens, *, features: bool) -> Forward:
        return Forward(self.logits(rows, last_tokens))

    def sample(self, forward: Forward, rows: Sequence[Row], needs: frozenset[Need]) -> Sampled:
        if not needs <= self.samples:
            return super().sample(forward, rows, needs)
        assert forward.logits_OV is not None
        return self._sampled(forward.logits_OV, [row.sample for row in rows if row.sample is not None])

    def decode_again(
        self, rows: Sequence[Row], number: int, tokens_R: Sequence[int], last: Sampled, needs: frozenset[Need]
    ) -> tuple[Forward, Sampled]:
        if last.tokens_R is None:
            return super().decode_again(rows, number, tokens_R, last, needs)
        logits_RV = self.next_logits(np.array(tokens_R))
        return Forward(logits_RV), self._sampled(logits_RV, [next_sample(row, number) for row in rows])

    def _sampled(self, logits_RV: torch.Tensor, samples: Sequence[Sample]) -> Sampled:
        self.rule_out_textless(logits_RV)
        tokens_R = self.sampled_tokens(logits_RV, samples)
        return Sampled(LastTokens(torch.from_numpy(tokens_R), range(len(samples))), tokens_R=tokens_R.tolist())

    def logits(self, rows: Sequence[Row], last_tokens: LastTokens) -> torch.Tensor:
        """Return the logits of rows whose needs it meets, float32 [R, V]; write their keys and values.

        The next step overwrites the logits. Raises IndexError when a token is not in the vocabulary.
        """
        num_slots = 2 if rows[0].window_pages else 1
        is_new = self._pages.update([row.pages for row in rows])
        if num_slots == 2:
            is_new = self._window_pages.update([row.window_pages for row in rows]) or is_new
        tokens, positions = [row.tokens[0] for row in rows], [row.first_position for row in rows]
        offsets = [row.rope_offset for row in rows]
        self._rope_offsets = np.array(offsets) if any(offsets) else None
        self._longest = max(positions)
        if self._reserve_angles() or is_new:
            self._memory.clear()
        memory = self._now = self._memory_of(len(rows), num_slots)
        memory.tokens_2R[0], memory.tokens_2R[1] = tokens, positions
        if PENDING in tokens:
            last_tokens.fill(torch.from_numpy(memory.tokens_2R[0]), rows, range(len(rows)))
        return self._compute(memory)

    def next_logits(self, tokens_R: Ints) -> torch.Tensor:
        """Return `logits` after one more token of each row of the last step, whose pages have room for it."""
        assert self._now is not None
        if self._reserve_angles():
            self._memory.clear()
        memory = self._memory_of(len(tokens_R), self._now.num_slots)
        memory.tokens_2R[1] = self._now.tokens_2R[1] + 1
        memory.tokens_2R[0] = tokens_R
        self._now = memory
        return self._compute(memory)

    def sampled_tokens(self, logits_RV: torch.Tensor, samples: Sequence[Sample]) -> Ints:
        """Return the tokens of `sampler.sample` for samples of the last step's rows whose needs it meets, int64 [R].

        The next step overwrites them.
        """
        assert self._now is not None
        temperature_R, min_p_R, draw_R, tokens_R = self._now.sampling
        temperatures = [own.temperature for own in samples]
        temperature_R[:] = temperatures
        if any(temperatures):
            min_p_R[:], draw_R[:] = [own.min_p for own in samples], [own.draw for own in samples]
        arrays = logits_RV.numpy(), temperature_R, min_p_R, draw_R, tokens_R
        if len(samples) == 1:
            sample_rows(*arrays)
        else:
            share_rows(logits_RV, lambda rows: sample_rows(*(array[rows] for array in arrays)))
        return tokens_R

    def _compute(self, memory: _Memory) -> torch.Tensor:
        model, layers, tokens_2R = self._model, self.layers, memory.tokens_2R
        self._longest += 1
        plans = decode_inputs(num_threads(), *memory.inputs)
        if not len(plans[0]):
            raise IndexError(f"a token of {tokens_2R[0].tolist()} is not in the vocabulary")
        if self._rope_offsets is not None:  # which the loop does not know
            turned_R = tokens_2R[1] + self._rope_offsets
            memory.angles[0][:], memory.angles[1][:] = self._cos[:, turned_R], self._sin[:, turned_R]
        if not self._embeds:
            ids_R, positions_R = map(torch.from_numpy, tokens_2R)
            memory.x_RE[:] = model.embed(ids_R, positions_R).float().numpy()
        settings = memory.settings
        if model.config.query_scales is not None:
            scales_R = model.query_scales(torch.from_numpy(tokens_2R[1]))
            assert scales_R is not None
            settings = settings._replace(query_scales_T=scales_R.numpy())
        kv_LX = layers.descriptors(self.kv, model.dtype)
        layers.compute(memory.x_RE, kv_LX, (*plans, NO_PLAN), settings, num_slots=memory.num_slots, with_head=True)
        return model.finish_logits(memory.logits_RV)

    def _reserve_angles(self) -> bool:
        """Have the angles of all positions of the step; return True if the arrays are new."""
        count = self._longest + 1
        if count <= self._cos.shape[1]:
            return False
        tables = [rope.tables(count) for rope in self._model.ropes]
        least, D = min(len(cos) for cos, _ in tables), self._cos.shape[2]
        self._cos, self._sin = (
            side_by_side([part[:least] for part in parts], least, D) for parts in zip(*tables, strict=True)
        )
        return True

    def _memory_of(self, rows: int, num_slots: int) -> _Memory:
        """Return the memory of steps with a number of rows."""
        scratch = self.layers.scratch_of(rows)
        memory = self._memory.get((rows, num_slots))
        if memory is None or memory.scratch is not scratch:
            # Others that have scratch memory of before would keep it from being freed.
            kept = self.layers.scratch
            self._memory = {key: own for key, own in self._memory.items() if kept.get(key[0]) is own.scratch}
            memory = self._memory[rows, num_slots] = self._new_memory(rows, num_slots, scratch)
        return memory

    def _new_memory(self, rows: int, num_slots: int, scratch: StepScratch) -> _Memory:
        ropes, _, D = self._cos.shape
        if rows > len(self._x_RE):
            self._memory.clear()  # it has views of the smaller arrays
            most = max(rows, 2 * len(self._x_RE))
            self._x_RE = np.empty((most, self._model.config.hidden_size), np.float32)
            self._logits_RV = np.empty((most, self.layers.vocab_size), np.float32)
            self._angles = np.empty((2, ropes * most * D), np.float32)
        tokens_2R, slots_SR = np.empty((2, rows), np.int64), np.empty((num_slots, rows), np.int64)
        angles = [own[: ropes * rows * D].reshape(ropes, rows, D) for own in self._angles]
        x_RE, logits_RV = self._x_RE[:rows], self._logits_RV[:rows]
        tables = self._pages.pages_RP, (self._window_pages if num_slots > 1 else self._pages).pages_RP
        inputs = (tokens_2R, *tables, *self._settings, self._cos, self._sin, *self._embedding, slots_SR, *angles, x_RE)
        empty = np.empty((0, x_RE.shape[1]), np.float32)
        results = StepResults(None, empty, (), empty[None], logits_RV)
        settings = self.layers.settings(angles, slots_SR, scratch, results, tokens_2R[1])
        sampling = np.zeros(rows, np.float32), np.zeros(rows, np.float32), *np.zeros((2, rows), np.int64)
        logits = torch.from_numpy(logits_RV)
        return _Memory(tokens_2R, x_RE, logits, sampling, num_slots, inputs, angles, scratch, settings)
