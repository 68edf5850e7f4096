"""What is asked of devices, and how a model is laid over them."""

from __future__ import annotations

import msgspec

from .memory import KvFormat, WeightFormat


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    prompt: int  # tokens
    context: int  # tokens of a sequence at its longest, the prompt included
    concurrency: int  # sequences at once
    cached: int = 0  # tokens of the prompt that are in the prefix cache

    @property
    def mean_length(self) -> float:
        """Of a sequence while it is decoded."""
        return (self.prompt + self.context) / 2


class Arrangement(msgspec.Struct, frozen=True, kw_only=True):
    tp: int = 1
    pp: int = 1
    weights: WeightFormat = "bf16"
    kv: KvFormat = "bf16"

    @property
    def num_devices(self) -> int:
        return self.tp * self.pp
