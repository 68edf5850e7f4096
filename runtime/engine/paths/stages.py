"""Pipeline-parallel forward: the layers of a model are spread over ranks, its stages.

Every stage gets the whole plan, cuts it into the same micro-batches and computes them in order: while the second stage
has the first micro-batch, the first stage has the second one (Huang et al. 2019, GPipe, section 2.3). The last stage's
output and the captures of all stages go back to the first, which computes the final hidden states.

Legend: T tokens, O outputs wanted, E hidden size, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
import torch

from ....kernels import KvCache
from ...models.decoder import Decoder
from ...models.decoder_inputs import DecoderInputs
from ...models.experts.routes import ExpertRoutes
from ...models.parallel.group import Group, WaitSent
from ...models.parallel.stage import MIN_MICRO_BATCH_TOKENS, num_micro_batches
from ...scheduler.plan import Row
from ..inputs import decoder_inputs
from ..last_tokens import NO_LAST_TOKENS, LastTokens


@dataclass(frozen=True)
class MicroBatch:
    """Consecutive tokens of a step: those of `rows`, concatenated."""

    rows: list[Row]
    wanted: np.ndarray  # indices of its tokens whose hidden states are read
    places: np.ndarray  # indices of these among all that are read


def hidden_and_features(
    rows: Sequence[Row],
    wanted: np.ndarray,
    model: Decoder,
    kv: Sequence[KvCache],
    group: Group,
    captures: Sequence[int],
    last_tokens: LastTokens = NO_LAST_TOKENS,
    routes: ExpertRoutes | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `Decoder.hidden_and_features` on every stage at once. Stages other than the first return [0, E] and None.
    `last_tokens` are as in `decoder_inputs`; `routes` record the tokens' experts, on one stage only."""
    if group.stage.size == 1:
        inputs = replace(decoder_inputs(rows, model, wanted, kv[0], last_tokens), routes=routes)
        return forward_on_stages(inputs, model, kv, group, captures)
    batches = micro_batches(rows, wanted, group.stage.size, least=MIN_MICRO_BATCH_TOKENS[model.device.type])
    hidden_OE, features = _StagedForward(model, kv, group, captures).run(
        decoder_inputs(batch.rows, model, batch.wanted, kv[0], last_tokens) for batch in batches
    )
    places = np.concatenate([batch.places for batch in batches])
    if len(hidden_OE) and not np.array_equal(places, np.arange(len(places))):
        hidden_OE = hidden_OE[torch.from_numpy(np.argsort(places)).to(model.device)]
    return hidden_OE, features


def forward_on_stages(
    inputs: DecoderInputs, model: Decoder, kv: Sequence[KvCache], group: Group, captures: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `Decoder.hidden_and_features` on every stage, in one micro-batch; returns as `hidden_and_features`."""
    if group.stage.size == 1:
        return model.hidden_and_features(inputs, kv, captures)
    return _StagedForward(model, kv, group, captures).run([inputs])


def micro_batches(rows: Sequence[Row], wanted: np.ndarray, most: int, *, least: int) -> list[MicroBatch]:
    """Cut the rows' tokens into at most `most` parts of about the same size, of `least` tokens or more.

    A part begins between rows, or, where none has a tree or a picture that attends both ways, within a row. The row's
    tokens before the cut are computed by then, since every stage computes one part after the other.
    """
    num_R = np.array([len(row.tokens) for row in rows])
    starts_R = np.cumsum(num_R) - num_R
    T = int(num_R.sum())
    count = num_micro_batches(T, most, least=least)
    bounds = [T * part // count for part in range(count + 1)]
    if any(row.parents is not None or any(part.picture.attends_both_ways for part in row.pictures) for row in rows):
        bounds = sorted({int(starts_R[np.abs(starts_R - bound).argmin()]) for bound in bounds[:-1]} | {0, T})
    batches = []
    for start, end in pairwise(bounds):
        cut = [_part(row, start - first, end - first) for row, first in zip(rows, starts_R.tolist(), strict=True)]
        places = np.flatnonzero((wanted >= start) & (wanted < end))
        batches.append(MicroBatch([row for row in cut if row is not None], wanted[places] - start, places))
    return batches


def _part(row: Row, start: int, end: int) -> Row | None:
    """Return the row's tokens [start, end), as far as it has them; None if it has none."""
    start, end = max(0, start), min(end, len(row.tokens))
    if start >= end:
        return None
    if end - start == len(row.tokens):
        return row
    return msgspec.structs.replace(
        row,
        tokens=row.tokens[start:end],
        first_position=row.first_position + start,
        rope_offset=row.rope_offset_at(start),
        pictures=[part for each in row.pictures if (part := each.within(start, end)) is not None],
    )


class _StagedForward:
    """One forward of this stage; sends are settled at its end."""

    def __init__(self, model: Decoder, kv: Sequence[KvCache], group: Group, captures: Sequence[int]) -> None:
        self._model, self._kv, self._group, self._captures = model, kv, group, captures
        self._sent: list[WaitSent] = []

    def run(self, inputs_M: Iterable[DecoderInputs]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the micro-batches in order; return their hidden states and features, concatenated."""
        through_M = [self._through_layers(inputs) for inputs in inputs_M]
        finished_M = [self._finish(*through) for through in through_M] if self._group.stage.has_ends else []
        for settle in self._sent:
            settle()
        if not finished_M:
            return self._states(0), None
        hidden_OE = torch.cat([hidden for hidden, _ in finished_M])
        features = [features for _, features in finished_M if features is not None]
        return hidden_OE, torch.cat(features) if features else None

    def _through_layers(self, inputs: DecoderInputs) -> tuple[DecoderInputs, dict[int, torch.Tensor]]:
        """Run this stage's layers and send the result to the next stage. Return the inputs and this stage's
        captures."""
        model, stage = self._model, self._group.stage
        if stage.has_ends:
            stream = inputs.with_pictures(model.embed(inputs.ids_T, inputs.positions_T))
        else:
            stream = self._group.receive(self._states(len(inputs.ids_T)), stage.index - 1)
        captured: dict[int, torch.Tensor] = {}
        stream = model.through_layers(stream, inputs, self._kv, self._captures, captured)
        if not stage.has_ends:
            for index in sorted(captured):
                self._send(captured[index], 0)
        self._send(stream, (stage.index + 1) % stage.size)
        return inputs, captured

    def _finish(
        self, inputs: DecoderInputs, captured: dict[int, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Receive a micro-batch's output and captures on the first stage, and compute its hidden states and
        features."""
        model, group, config = self._model, self._group, self._model.whole_config
        T, wanted_O = len(inputs.ids_T), inputs.wanted_O
        for index in range(1, group.stage.size):
            layers = replace(group.stage, index=index).layers(config)
            for capture in sorted(set(self._captures).intersection(layers)):
                captured[capture] = group.receive(self._states(T), index)
        stream = self._states(T if wanted_O is None or config.num_layers in self._captures else len(wanted_O))
        if len(stream):
            stream = group.receive(stream, group.stage.size - 1)
        return model.finish(stream, wanted_O, self._captures, captured)

    def _send(self, x: torch.Tensor, stage: int) -> None:
        if len(x):
            self._sent.append(self._group.send(x, stage))

    def _states(self, rows: int) -> torch.Tensor:
        model = self._model
        return torch.empty((rows, model.config.hidden_size), dtype=model.dtype, device=model.device)
