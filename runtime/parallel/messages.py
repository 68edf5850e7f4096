"""What the ranks of a model say to each other beside tensors: rank 0 tells the others what to compute, and they tell it
how their start went. And what their nodes say, where there are several."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..protocol.errors import ErrorInfo
from ..scheduler.plan import ForwardPlan, SamplingPlan
from .fingerprint import NodeFingerprint


class StartSteps(msgspec.Struct, frozen=True, tag="begin"):
    """The first message: `captures` are the hidden states that rank 0's draft source wants of every forward."""

    captures: tuple[int, ...]


class RunPlan(msgspec.Struct, frozen=True, tag="step"):
    plan: ForwardPlan


class SampleStep(msgspec.Struct, frozen=True, tag="decide"):
    """What the rows sample that the last step left open."""

    sampling: SamplingPlan


ToRank = StartSteps | RunPlan | SampleStep


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """The weights are loaded."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank is going to leave, and why."""

    error: ErrorInfo


RankReport = RankReady | RankFailed


class NodeJoin(msgspec.Struct, frozen=True, tag="join"):
    """A node is there, and waits for plans at `address` as the holder of `key`, a public one."""

    node: int
    facts: NodeFingerprint
    address: Annotated[str, Meta(pattern=r"^tcp://[0-9.]{7,15}:[0-9]{1,5}$")]
    key: Annotated[str, Meta(min_length=40, max_length=40)]


class NodeReady(msgspec.Struct, frozen=True, tag="ready"):
    """All its ranks have loaded their weights."""


class NodeFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The node is going to leave, and why."""

    error: ErrorInfo


FromNode = NodeJoin | NodeReady | NodeFailed


class Rendezvous(msgspec.Struct, frozen=True):
    """Where torch.distributed meets: a store that node 0 keeps, and a prefix that only nodes know."""

    ip: str
    port: int
    prefix: str


class NodeWelcome(msgspec.Struct, frozen=True, tag="welcome"):
    rendezvous: Rendezvous


class NodeLeave(msgspec.Struct, frozen=True, tag="leave"):
    """The runtime ends, or will not have this node; without an error it was told to end."""

    error: ErrorInfo | None


ToNode = NodeWelcome | NodeLeave


def plan_address(socket_dir: str, rank: int) -> str:
    """Where rank 0 sends the messages of that rank."""
    return f"ipc://{socket_dir}/rank-{rank}"
