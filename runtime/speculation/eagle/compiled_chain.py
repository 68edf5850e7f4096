"""Draft chains of a small float32 head on a CPU as one compiled loop: its operators take longer to call than to run.

Legend: W new tokens, R rounds, S slots, C key/value heads times head size.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ....kernels.cpu.draft_chain import draft_chain
from ...models.packed_linear import packed_matrices
from .draft_memory import SCRATCH, DraftMemory
from .head import EagleHead

_MAX_WEIGHTS = 1 << 20  # of a matrix; products of larger ones are shared by threads


class CompiledHead:
    """A head's weights and memory as arrays for the compiled loop. Made by `of`."""

    def __init__(self, head: EagleHead, memory: DraftMemory, weights: tuple[NDArray[np.generic], ...]) -> None:
        self._head, self._weights = head, weights
        self._scratch = len(memory.k_SC) - SCRATCH
        self._memory = memory.feature_SE.numpy(), memory.kv.k_SKD.numpy(), memory.kv.v_SKD.numpy()
        self.chain(np.zeros(1, np.int64), np.zeros(1, np.int64), 1, 1.0)  # compiles the loop, or loads it

    @classmethod
    def of(cls, head: EagleHead, memory: DraftMemory) -> CompiledHead | None:
        """Return None if the head is on another device, of another dtype, too large to gain by it, or has a residual
        stream that the loop does not compute."""
        own, lm_head = head.parameters, head.lm_head
        products = packed_matrices([own.fc, own.qkv, own.o, own.gate_up, own.down, lm_head])
        if head.serving_ops.name != "cpu" or products is None or head.embedding.dtype != torch.float32:
            return None
        if head.config.norm_before_residual or any(
            matrix.outputs * matrix.inputs > _MAX_WEIGHTS for matrix in products
        ):
            return None
        fc, qkv, o, gate_up, down, logits = (matrix.descriptor for matrix in products)

        def vector(tensor: torch.Tensor | None) -> NDArray[np.generic]:
            return np.zeros(0, np.float32) if tensor is None else tensor.detach().numpy()

        token_ids = head.token_ids(torch.arange(head.config.draft_vocab_size)).numpy()
        same = len(token_ids) == head.config.vocab_size and bool((np.diff(token_ids) == 1).all())
        weights = (
            head.embedding.detach().numpy(),
            fc,
            vector(own.hidden_norm_E),
            vector(own.input_norm_E),
            qkv,
            o,
            vector(own.post_norm_E),
            gate_up,
            down,
            vector(own.norm_E),
            logits,
            token_ids[:0] if same else token_ids,
        )
        return cls(head, memory, weights)

    def chain(
        self, ids_W: NDArray[np.int64], slots_P: NDArray[np.int64], num_rounds: int, temperature: float
    ) -> tuple[list[int], list[float]]:
        """Draft `num_rounds` tokens (at most SCRATCH) greedily after `ids_W`. Returns the tokens and their
        log-probabilities.

        KV of `ids_W` is stored where the tokens have slots. `slots_P` are the slots of the positions before the last of
        them.
        """
        assert num_rounds <= SCRATCH
        cos_P1D, sin_P1D = self._head.rope.tables(len(slots_P) + num_rounds)
        tokens_R, scores_R = np.empty(num_rounds, np.int64), np.empty(num_rounds, np.float32)
        draft_chain(
            ids_W,
            slots_P,
            self._scratch,
            temperature,
            *self._memory,
            cos_P1D.squeeze(1).numpy(),
            sin_P1D.squeeze(1).numpy(),
            *self._weights,
            self._head.config.norm_eps,
            self._head.scale,
            tokens_R,
            scores_R,
        )
        return tokens_R.tolist(), scores_R.tolist()
