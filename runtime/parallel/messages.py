"""What the ranks of a model say to each other beside tensors: rank 0 tells the others what to compute, and they tell it
how their start went."""

from __future__ import annotations

import msgspec

from ..protocol.errors import ErrorInfo
from ..scheduler.plan import ForwardPlan, SamplingPlan


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The first message: `captures` are the hidden states that rank 0's draft source wants of every forward."""

    captures: tuple[int, ...]


class Step(msgspec.Struct, frozen=True, tag="step"):
    plan: ForwardPlan


class Decide(msgspec.Struct, frozen=True, tag="decide"):
    """What the rows sample that the last step left open."""

    sampling: SamplingPlan


ToRank = Begin | Step | Decide


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """The weights are loaded."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank is going to leave, and why."""

    error: ErrorInfo


RankReport = RankReady | RankFailed


def plan_address(socket_dir: str, rank: int) -> str:
    """Where rank 0 sends the messages of that rank."""
    return f"ipc://{socket_dir}/rank-{rank}"
