"""Hidden states of whole texts, computed by the target's serving decoder.

Legend: B texts, T tokens of the longest, C captured size, E hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...runtime.engine.inputs import decoder_inputs
from ...runtime.engine.kv_pool import PAGE_SIZE, KvMemory
from ...runtime.models.decoder import Decoder
from ...runtime.scheduler.plan import Row


class Target:
    """A target model and the KV memory for its forwards, which grows with the largest batch."""

    def __init__(self, model: Decoder, captures: Sequence[int]) -> None:
        self.model = model
        self._captures = tuple(captures)
        self._memory = self._allocate(1)

    def _allocate(self, num_pages: int) -> KvMemory:
        return KvMemory(self.model.config, num_pages, device=self.model.device, dtype=self.model.dtype)

    @torch.no_grad()
    def states(self, texts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the captured states that the head is fed, [B, T, C], and those after the final norm, [B, T, E].
        Padding is zeros."""
        rows, num_pages = [], 0
        for index, ids in enumerate(texts):
            end = num_pages + -(-len(ids) // PAGE_SIZE)
            pages = list(range(num_pages, end))
            rows.append(Row(rid=str(index), tokens=list(ids), first_position=0, pages=pages, widened=True))
            num_pages = end
        if num_pages > self._memory.num_pages:
            self._memory = self._allocate(num_pages)
        lengths = [len(ids) for ids in texts]
        kv = self._memory.layers()
        inputs = decoder_inputs(rows, self.model, np.arange(sum(lengths)), kv[0])
        final_NE, captured_NC = self.model.hidden_and_features(inputs, kv, self._captures)
        assert captured_NC is not None
        captured_BTC, final_BTE = (
            torch.nn.utils.rnn.pad_sequence(list(torch.split(states, lengths)), batch_first=True)
            for states in (captured_NC, final_NE)
        )
        return captured_BTC, final_BTE
