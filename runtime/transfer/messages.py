"""Messages between two runtimes, as typed msgspec structs: the layout of pages, requests for pages, the pages.

A runtime connects to another one's `transfer_bind` and greets. Then it fetches prefixes (prefill and decode apart) or
stores them (a replica that is drained). Both ways pages travel the same: some whole pages of a token sequence at a
time, each message confirmed by `PagesTaken`, so that a slow receiver bounds what the sender holds.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from ..protocol.errors import ErrorInfo, RequestError
from ..protocol.pictures import Picture

PROTOCOL = 1
MAX_PAYLOAD_BYTES = 8 << 20  # of one message's pages
# Of all pages that receivers have not confirmed. A step's chunk must fit, since messages are handled between steps.
MAX_UNCONFIRMED_BYTES = 256 << 20

Tokens = Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 32)]], Meta(max_length=1 << 24)]
Namespace = Annotated[str, Meta(max_length=4096)]


class KvLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Layout of KV pages, which two runtimes must share to exchange them. Tensor parallelism may differ: pages travel
    whole."""

    protocol: int
    model: str  # digest of configuration and weights
    dtype: str  # of weights and activations
    quantize: str | None
    context_length: int
    kv_dtype: str
    kv_scales: str  # digest
    page_size: int
    num_layers: int
    num_kv_heads: int
    head_bytes: int  # of one head's keys, or values, in a slot

    def check(self, other: KvLayout, reason: str = "") -> None:
        """Raise RequestError, naming the first field in which the other runtime differs; if that is `kv_scales`, also
        the `reason` why one runtime has not adopted those of the other."""
        fields = [field for field in self.__struct_fields__ if field != "kv_scales"]
        for field in (*fields, "kv_scales"):
            own, theirs = getattr(self, field), getattr(other, field)
            if own != theirs:
                hint = f"{reason}. Start both with one --kv-scales FILE of `ramiform calibrate-kv`"
                raise RequestError(
                    f"KV pages cannot be exchanged: {field} is {own!r} here and {theirs!r} there"
                    + (hint if field == "kv_scales" else ""),
                    param=field,
                    code="kv_layout_mismatch",
                )

    def differs_in_scales(self, other: KvLayout) -> bool:
        """Return True if the two layouts differ in their scales or statistics, and in nothing else."""
        return self != other and msgspec.structs.replace(self, kv_scales=other.kv_scales) == other


class NixlMemory(msgspec.Struct, frozen=True):
    """Registered memory of a NIXL agent: `num_slots` pages of `page_bytes`, one after the other."""

    metadata: Annotated[bytes, Meta(max_length=1 << 20)]  # of the agent
    address: int
    page_bytes: int
    num_slots: Annotated[int, Meta(ge=1, le=1 << 16)]
    device: int  # index of the CUDA device
    kind: str  # "DRAM" or "VRAM"


# Connecting side -> bound side


class Greet(msgspec.Struct, frozen=True, tag="greet"):
    """First message of a connection, answered by `Greeting`. A second one follows where only scales or statistics of
    keys and values differ: of who has adopted the other side's, or with its own, to be adopted, as payload."""

    layout: KvLayout
    wants_nixl: bool = False


class FetchPrefix(msgspec.Struct, frozen=True, kw_only=True, tag="fetch"):
    """Compute `tokens`, or find them cached, and send their whole pages from index `first` on. Answered by
    `PagesSent`, many times, and `FetchEnded`. `pictures` are those of the tokens, all of them whole."""

    call: int
    tokens: Tokens
    namespace: Namespace
    first: Annotated[int, Meta(ge=0)]
    priority: int = 0
    pictures: list[Picture] = []


class CancelFetch(msgspec.Struct, frozen=True, tag="cancel"):
    """Send nothing more of a fetch."""

    call: int


class StorePrefix(msgspec.Struct, frozen=True, tag="store"):
    """Offer the whole pages of `tokens`. Answered by `PagesWanted`, then, when all came, by `PrefixStored`."""

    call: int
    tokens: Tokens
    namespace: Namespace


class StoreSessions(msgspec.Struct, frozen=True, tag="sessions"):
    """Take over sessions of the HTTP route `/open_session`, as frontends save them. Answered by `PrefixStored`."""

    call: int
    data: bytes


# Both directions


class PagesSent(msgspec.Struct, frozen=True, tag="pages"):
    """Pages [first, first + count) of the call's tokens: in a second frame, or in these slots of the sender's
    registered memory."""

    call: int
    first: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=1)]
    is_early: bool  # sent while later tokens of the prompt were computed
    slots: list[Annotated[int, Meta(ge=0)]] | None = None


class PagesTaken(msgspec.Struct, frozen=True, tag="taken"):
    """Confirms one `PagesSent`: its slots may be used again."""

    call: int
    count: Annotated[int, Meta(ge=1)]  # pages
    slots: list[int] | None = None


# Bound side -> connecting side


class Greeting(msgspec.Struct, frozen=True, tag="greeting"):
    """Answer to `Greet`. With an error the layouts differ, and nothing else will be answered; if only scales or
    statistics differ, they are its payload."""

    layout: KvLayout
    nixl: NixlMemory | None = None
    error: ErrorInfo | None = None


class FetchEnded(msgspec.Struct, frozen=True, tag="fetched"):
    """All pages of a fetch were sent. With an error the rest will not come."""

    call: int
    error: ErrorInfo | None = None


class PagesWanted(msgspec.Struct, frozen=True, tag="wanted"):
    """Pages below index `first` are there already; send the rest."""

    call: int
    first: Annotated[int, Meta(ge=0)]


class PrefixStored(msgspec.Struct, frozen=True, tag="stored"):
    """End of a store: whole pages that are now cached. With an error the rest was not taken."""

    call: int
    num_pages: int
    error: ErrorInfo | None = None


ToServer = Greet | FetchPrefix | CancelFetch | StorePrefix | StoreSessions | PagesSent | PagesTaken
ToClient = Greeting | PagesSent | PagesTaken | FetchEnded | PagesWanted | PrefixStored
