"""What the processes are started with. Each field carries its meaning; the command line's flags are made from them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

OrderName = Literal["fcfs", "lpm", "dfs", "program"]
SpeculativeName = Literal["eagle", "ngram", "draft", "off"]
EvictionName = Literal["lru", "lfu", "priority", "program"]


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The model, its memory, and how much one step does."""

    model: Annotated[str | None, Meta(description="a Hugging Face checkpoint; default: the one that ships")] = None
    served_model_name: Annotated[
        str | None, Meta(description="name to answer under; default: the path's last part")
    ] = None
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="of weights and KV; auto: float32 on CPU below 200M parameters, else bfloat16"),
    ] = "auto"
    context_length: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="tokens per sequence; default: the model's")
    ] = None
    num_pages: Annotated[
        Annotated[int, Meta(ge=4)] | None, Meta(description="KV pages of 16 tokens; default: from kv_memory")
    ] = None
    kv_memory: Annotated[float, Meta(gt=0, le=1 << 20, description="GiB for KV, when num_pages is not given")] = 1.0
    prefill_budget: Annotated[int, Meta(ge=16, description="tokens computed per step, all rows together")] = 1024
    max_running: Annotated[int, Meta(ge=1, description="requests decoded at once")] = 64
    max_waiting: Annotated[int, Meta(ge=1, description="requests queued before answering busy")] = 4096
    prefix_cache: Annotated[bool, Meta(description="reuse the KV of shared prefixes")] = True
    order: Annotated[
        OrderName,
        Meta(description="of waiting requests: by arrival, longest cached prefix first, tree order, or by program"),
    ] = "program"
    eviction: Annotated[
        EvictionName,
        Meta(description="which cached prefix goes first; program: what no live program needs"),
    ] = "program"
    host_kv_memory: Annotated[
        float, Meta(ge=0, le=1 << 20, description="GiB of host memory for KV that the pool has no room for")
    ] = 0.0
    jump_forward: Annotated[
        bool, Meta(description="append text that a grammar leaves no choice about without asking the model")
    ] = True
    kv_events: Annotated[
        str | None,
        Meta(description="ZMQ address to publish what the cache stores and removes at; tcp replays at the next port"),
    ] = None
    speculative: Annotated[
        SpeculativeName | None,
        Meta(description="who guesses tokens ahead; default: eagle when the model has a head beside it, else off"),
    ] = None
    speculative_draft_model: Annotated[
        str | None, Meta(description="the head (eagle) or the smaller model (draft); default: the head in MODEL/draft")
    ] = None
    speculative_num_steps: Annotated[int, Meta(ge=1, le=32, description="guesses after one another")] = 5
    speculative_eagle_topk: Annotated[int, Meta(ge=1, le=32, description="guesses beside one another")] = 4
    speculative_num_draft_tokens: Annotated[
        int, Meta(ge=2, le=128, description="tokens verified at once for a request: the last known one and its guesses")
    ] = 8
    speculative_adaptive: Annotated[
        bool, Meta(description="verify only as many guesses as have paid lately; off: always all")
    ] = True
    log_plans: Annotated[str | None, Meta(description="write every message, plan and result to this file")] = None


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the frontend is reached. Without a port it serves ZMQ clients only."""

    socket_dir: str  # mode 0700, made and removed by the frontend's owner
    host: Annotated[str, Meta(description="HTTP address to bind")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)] | None, Meta(description="HTTP port; 0: any free one")] = None
    api_key: Annotated[str | None, Meta(description="required as 'Authorization: Bearer KEY' when set")] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="of our processes' logs")] = (
        "warning"
    )

    @property
    def client_address(self) -> str:
        return f"ipc://{self.socket_dir}/frontend"

    @property
    def core_address(self) -> str:
        return f"ipc://{self.socket_dir}/core"


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    core: CoreConfig
    serve: ServeConfig
