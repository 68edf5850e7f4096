"""Messages between ranks, and between nodes.

Rank 0 tells the others what to compute; they report how their start went. Tensors go through torch.distributed.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ..models.stored.weight_source import Fingerprint
from ..protocol.errors import ErrorInfo
from ..protocol.sampling import MemoryTag
from ..scheduler.plan import ForwardPlan, PageCopy, Row, SamplingPlan
from .fingerprint import NodeFingerprint


class StartSteps(msgspec.Struct, frozen=True, tag="begin"):
    """The first message: `captures` are the hidden states that rank 0's draft source reads of every forward."""

    captures: tuple[int, ...]


class RunPlan(msgspec.Struct, frozen=True, tag="step"):
    """Compute a plan."""

    plan: ForwardPlan


def without_pixels(plan: ForwardPlan) -> ForwardPlan:
    """Return the plan for ranks other than the first, which get pictures' features from it."""
    if not any(row.pictures for row in plan.rows):
        return plan
    rows = [replace(row, pictures=[part.without_pixels() for part in row.pictures]) for row in plan.rows]
    return replace(plan, rows=rows)


class SampleStep(msgspec.Struct, frozen=True, tag="decide"):
    """Sample the rows that the last step left open."""

    sampling: SamplingPlan


class CopyPages(msgspec.Struct, frozen=True, tag="copy"):
    """Copy pages between steps."""

    copies: list[PageCopy]


class ReadPages(msgspec.Struct, frozen=True, tag="read"):
    """Send the rank's part of device pages back: a `PagesPart` and, as a second frame, its bytes."""

    pages: list[int]


class WritePages(msgspec.Struct, frozen=True, tag="write"):
    """Overwrite the pages of `row` from index `first` on; `data` are whole pages, as `ForwardEngine.read_pages`."""

    row: Row
    first: int
    data: bytes


class ReadConstants(msgspec.Struct, frozen=True, tag="read_constants"):
    """Send the rank's scales or statistics of keys and values back: a `PagesPart` and, as a second frame, its bytes."""


class AdoptConstants(msgspec.Struct, frozen=True, tag="adopt_constants"):
    """Store keys and values by other scales or statistics: float32s of this shape, of the whole model, as
    `ForwardEngine.adopt_constants` takes them."""

    shape: tuple[int, ...]
    data: bytes


class PutAdapter(msgspec.Struct, frozen=True, tag="put_adapter"):
    """Put a LoRA adapter on the device; `data` is a part of `AdapterWeights.to_bytes`, which the last one completes."""

    number: int
    rank: int
    data: bytes
    is_last: bool


class DropAdapter(msgspec.Struct, frozen=True, tag="drop_adapter"):
    """Remove a LoRA adapter."""

    number: int


class PrepareWeights(msgspec.Struct, frozen=True, tag="prepare_weights"):
    """Load the rank's part of the weights in `path` beside those in use; None: of those in use, from where they came.
    Answered by `WeightsPrepared`."""

    path: str | None


class TakeWeights(msgspec.Struct, frozen=True, tag="take_weights"):
    """Compute with the prepared weights from now on."""


class DropWeights(msgspec.Struct, frozen=True, tag="drop_weights"):
    """Forget the prepared weights: a rank refuses its part."""


class ReleaseRankMemory(msgspec.Struct, frozen=True, tag="release_memory"):
    """Return memory to the system, as `ForwardEngine.release_memory` does."""

    tags: list[MemoryTag]


ToRank = (
    StartSteps
    | RunPlan
    | SampleStep
    | CopyPages
    | ReadPages
    | WritePages
    | ReadConstants
    | AdoptConstants
    | PutAdapter
    | DropAdapter
    | PrepareWeights
    | TakeWeights
    | DropWeights
    | ReleaseRankMemory
)


class WeightsPrepared(msgspec.Struct, frozen=True):
    """The rank has loaded its part of files with this fingerprint, or says why it refuses them."""

    fingerprint: Fingerprint = ()
    error: ErrorInfo | None = None


class PagesPart(msgspec.Struct, frozen=True):
    """Layers and key/value heads of the model, [start, stop), that a rank's part of pages has."""

    layers: tuple[int, int]
    heads: tuple[int, int]


class RankReady(msgspec.Struct, frozen=True, tag="ready"):
    """The rank has loaded its weights."""


class RankFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank is about to exit, with the cause."""

    error: ErrorInfo


RankReport = RankReady | RankFailed


class NodeJoin(msgspec.Struct, frozen=True, tag="join"):
    """A node joins. It receives plans at `address` as the holder of the public `key`."""

    node: int
    fingerprint: NodeFingerprint
    address: Annotated[str, Meta(pattern=r"^tcp://[0-9.]{7,15}:[0-9]{1,5}$")]
    key: Annotated[str, Meta(min_length=40, max_length=40)]


class NodeReady(msgspec.Struct, frozen=True, tag="ready"):
    """All ranks of the node have loaded their weights."""


class NodeFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The node is about to exit, with the cause."""

    error: ErrorInfo


FromNode = NodeJoin | NodeReady | NodeFailed


class Rendezvous(msgspec.Struct, frozen=True):
    """Address of torch.distributed's store, which node 0 hosts, and a key prefix that only nodes know."""

    ip: str
    port: int
    prefix: str


class NodeWelcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Node 0 accepts the node."""

    rendezvous: Rendezvous


class NodeLeave(msgspec.Struct, frozen=True, tag="leave"):
    """The runtime ends, or refuses the node. Without an error it was told to end."""

    error: ErrorInfo | None


ToNode = NodeWelcome | NodeLeave


def plan_address(socket_dir: str, rank: int) -> str:
    """Return the socket address where rank 0 sends messages to a rank."""
    return f"ipc://{socket_dir}/rank-{rank}"
