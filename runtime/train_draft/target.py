"""The target's features of whole texts, computed by the decoder that serves it.

Legend: B texts, T tokens of the longest, C captured size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..engine.inputs import decoder_inputs
from ..engine.kv_pool import PAGE_SIZE, KvMemory
from ..models.decoder import Decoder
from ..scheduler.plan import Row


class Target:
    """Keys and values live in pages that grow with the largest batch seen."""

    def __init__(self, model: Decoder, captured_layers: Sequence[int]) -> None:
        self.model = model
        self._captured_layers = tuple(captured_layers)
        self._memory = self._room(1)

    def _room(self, num_pages: int) -> KvMemory:
        return KvMemory(self.model.config, num_pages, device=self.model.device, dtype=self.model.dtype)

    @torch.no_grad()
    def captured(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """[B, T, C], zeros behind a text's end."""
        rows, num_pages = [], 0
        for index, ids in enumerate(texts):
            end = num_pages + -(-len(ids) // PAGE_SIZE)
            rows.append(Row(rid=str(index), tokens=list(ids), first_position=0, pages=list(range(num_pages, end))))
            num_pages = end
        if num_pages > self._memory.num_pages:
            self._memory = self._room(num_pages)
        lengths = [len(ids) for ids in texts]
        inputs = decoder_inputs(rows, self.model, np.arange(sum(lengths)))
        layers = list(zip(self._memory.k_LSKD.unbind(), self._memory.v_LSKD.unbind(), strict=True))
        captured_NC = self.model.hidden(inputs, layers)
        return torch.nn.utils.rnn.pad_sequence(list(captured_NC.split(lengths)), batch_first=True)
