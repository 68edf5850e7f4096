"""Configuration of the processes. Each field carries its description, from which the command line's flags are made."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .sampling import DEFAULT_NUMBER_DIGITS, AdditionalProperties, JsonWhitespace

PAGE_SIZE = 16  # tokens of a KV page, the unit in which memory is given out and reused
OrderName = Literal["fcfs", "lpm", "dfs", "program"]
SpeculativeName = Literal["eagle", "medusa", "mtp", "draft", "early-exit", "suffix", "ngram", "lookahead", "off"]
# Draft sources that run beside the model, on its device. The scheduler makes the other drafts, from texts.
SOURCES_ON_DEVICE: frozenset[SpeculativeName] = frozenset({"eagle", "medusa", "mtp", "draft", "early-exit"})
KernelsName = Literal["auto", "triton", "reference"]
GrammarBackendName = Literal["native", "llguidance", "xgrammar", "outlines"]
ModelImplName = Literal["auto", "native", "transformers"]
QuantizeName = Literal["int8", "int4", "fp8"]
OverlapName = Literal["auto", "on", "off"]
KvDtypeName = Literal["auto", "fp32", "bf16", "fp16", "fp8", "fp8_e5m2", "int8", "int4"]
CacheScope = Literal["auto", "key", "shared"]
EngineName = Literal["http", "dynamo"]
PageTextsName = Literal["auto", "on", "off"]
KvEventsFormat = Literal["sglang", "vllm"]
RoleName = Literal["prefill", "decode", "both"]
TransferName = Literal["auto", "nixl", "zmq"]
EvictionName = Literal["lru", "lfu", "priority", "program"]

DEFAULT_MAX_RUNNING = 64  # on a CPU
DEFAULT_DISK_MEMORY = 16.0  # GiB

# Formats of tool calls; the frontend has their texts.
ToolFormatName = Literal[
    "hermes",
    "llama3_json",
    "pythonic",
    "mistral",
    "mistral_args",
    "deepseek",
    "deepseek_v31",
    "kimi_k2",
    "granite",
    "phi4_mini",
    "qwen3_coder",
    "glm45",
    "minimax_m2",
    "harmony",
    "deepseek_v32",
    "deepseek_v4",
    "functiongemma",
    "gemma4",
    "seed_oss",
    "step3",
    "lfm2",
    "olmo3",
    "hunyuan_a13b",
    "apertus",
    "granite_20b_fc",
    "internlm",
    "longcat",
    "json",
]


# Formats of reasoning; the frontend has their markers.
ToolCallReading = Literal["lenient", "strict"]
RerankerName = Literal["auto", "none", "qwen3", "bge"]
ReasoningFormatName = Literal["think", "magistral", "kimi", "seed_oss", "gemma4", "harmony", "granite"]


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the core: the model, its memory, and the size of a step."""

    model: Annotated[str | None, Meta(description="path or hub id of a model; default: the shipped one")] = None
    served_model_name: Annotated[
        str | None,
        Meta(description="model name in the API, or several by commas; default: the hub id, or the path's last part"),
    ] = None
    model_impl: Annotated[
        ModelImplName,
        Meta(
            description="who computes the model's layers: native families or the package transformers; "
            "auto: native where there is one"
        ),
    ] = "auto"
    lora: Annotated[
        list[str],
        Meta(description="LoRA adapter as NAME=PATH, a folder in PEFT's format; may be given several times"),
    ] = []
    max_loras: Annotated[int, Meta(ge=1, le=1024, description="maximum number of LoRA adapters loaded at once")] = 8
    max_lora_rank: Annotated[int, Meta(ge=1, le=256, description="maximum rank of a LoRA adapter")] = 64
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N")] = "auto"
    cpu_threads: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        Meta(
            description="threads that compute a step on CPUs, shared by the ranks of tp; default: the processors that "
            "the affinity mask and the cgroup's quota leave, or OMP_NUM_THREADS if that is less",
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="dtype of weights; auto: float32 on CPU below 200M parameters, else bfloat16"),
    ] = "auto"
    kv_dtype: Annotated[
        KvDtypeName,
        Meta(
            description="dtype of keys and values; auto: as dtype; fp8 (e4m3), fp8_e5m2 and int8 take half of bf16's "
            "memory, int4 little more than a quarter"
        ),
    ] = "auto"
    kv_scales: Annotated[
        str | None,
        Meta(
            description="file of `ramiform calibrate-kv` for fp8, int8, int4; default: kv_scales.json in MODEL, else "
            "the checkpoint's own, else measured on a built-in text at start"
        ),
    ] = None
    tp: Annotated[
        int, Meta(ge=1, le=64, description="tensor parallelism: processes that share each layer, one device each")
    ] = 1
    pp: Annotated[
        int, Meta(ge=1, le=64, description="pipeline parallelism: stages of some layers each, with tp processes")
    ] = 1
    ep: Annotated[
        int,
        Meta(ge=1, le=64, description="expert parallelism: 1, or as tp: its processes hold whole experts; on CPUs"),
    ] = 1
    nnodes: Annotated[int, Meta(ge=1, le=256, description="machines that share the tp x pp processes evenly")] = 1
    node_rank: Annotated[int, Meta(ge=0, description="rank of this machine; 0 serves clients")] = 0
    master: Annotated[
        str | None, Meta(description="HOST:PORT of node 0 for the other nodes; the same on all nodes")
    ] = None
    node_keys: Annotated[str | None, Meta(description="folder of the nodes' keys, made by `ramiform keys`")] = None
    quantize: Annotated[
        QuantizeName | None,
        Meta(description="round a dense checkpoint's linear layers while loading; fp8 rounds their inputs too"),
    ] = None
    context_length: Annotated[
        Annotated[int, Meta(ge=16)] | None, Meta(description="tokens per sequence; default: the model's")
    ] = None
    num_pages: Annotated[
        Annotated[int, Meta(ge=4)] | None, Meta(description=f"KV pages of {PAGE_SIZE} tokens; default: from kv_memory")
    ] = None
    kv_memory: Annotated[
        Annotated[float, Meta(gt=0, le=1 << 20)] | None,
        Meta(description="GiB for KV, when num_pages is not given; default: from mem_fraction"),
    ] = None
    mem_fraction: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="part of a CUDA device's memory for weights, graphs and KV, default 0.9; on a CPU, part of the "
            "available memory for KV, default 0.25, but no more than max_running sequences have"
        ),
    ] = None
    kernels: Annotated[
        KernelsName, Meta(description="kernels to use; auto: Triton on CUDA devices, plain torch elsewhere")
    ] = "auto"
    deterministic: Annotated[
        bool, Meta(description="bit-identical outputs for any batch, chunks, cache and tp; slower")
    ] = False
    cuda_graphs: Annotated[
        bool, Meta(description="on a CUDA device, capture steps that only decode, and replay them")
    ] = True
    overlap: Annotated[
        OverlapName,
        Meta(description="plan a step while the one before is computed; auto: on CUDA devices"),
    ] = "auto"
    prefill_budget: Annotated[int, Meta(ge=16, description="tokens computed per step, in all")] = 1024
    max_running: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="maximum number of running requests; default: 64, on CUDA devices what fits, up to 256"),
    ] = None
    state_slots: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="recurrent states of hybrid models, for running requests and checkpoints of cached prefixes; "
            "default: a quarter of the memory for KV, up to 8 for each request"
        ),
    ] = None
    window_ratio: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="pages of layers with a sliding window, for each page of the others; default: 0.5; 1: layers "
            "with a window keep the pages behind it"
        ),
    ] = None
    streaming_window: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(
            description="attend to the first tokens and the last N only (StreamingLLM), for outputs beyond the model's "
            "context; approximate"
        ),
    ] = None
    streaming_sinks: Annotated[
        int, Meta(ge=0, le=4096, description="first tokens that are always attended to with streaming_window")
    ] = 4
    max_waiting: Annotated[int, Meta(ge=1, description="maximum number of queued requests")] = 4096
    picture_bytes: Annotated[
        int,
        Meta(
            ge=0, le=1 << 40, description="read images, and keep at most so many bytes of their features; 0: text only"
        ),
    ] = 0
    enable_return_routed_experts: Annotated[
        bool, Meta(description="record the experts of each token, which requests may ask for; of models with experts")
    ] = False
    prefix_cache: Annotated[bool, Meta(description="reuse the KV of shared prefixes")] = True
    order: Annotated[
        OrderName,
        Meta(description="queue policy: by arrival, longest cached prefix first, tree order, or by program"),
    ] = "program"
    eviction: Annotated[
        EvictionName,
        Meta(
            description="eviction policy of cached prefixes; program: first what programs will request last, as learned"
        ),
    ] = "program"
    host_kv_memory: Annotated[
        float, Meta(ge=0, le=1 << 20, description="GiB of host memory for KV evicted from the pool")
    ] = 0.0
    disk_cache: Annotated[
        str | None,
        Meta(description="folder for KV of cached prefixes, which the next runtime of the same model finds there"),
    ] = None
    disk_memory: Annotated[
        Annotated[float, Meta(gt=0, le=1 << 20)] | None,
        Meta(description="GiB for disk_cache; default: 16"),
    ] = None
    grammar_backend: Annotated[
        GrammarBackendName, Meta(description="grammar engine; others than native need their packages")
    ] = "native"
    grammar_memory: Annotated[float, Meta(gt=0, le=1 << 10, description="GiB for cached grammars and their masks")] = (
        0.5
    )
    additional_properties: Annotated[
        AdditionalProperties,
        Meta(
            description="JSON objects whose schema lists properties and is silent about others: closed: no others; "
            "schema: any, as JSON Schema says; a request may ask for either"
        ),
    ] = "closed"
    number_digits: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="digits that numbers of JSON may have before the point, and after it, beyond what a schema's "
            "bounds need; 0: any number, so that a model may write digits without end; a request may ask for others",
        ),
    ] = DEFAULT_NUMBER_DIGITS
    json_whitespace: Annotated[
        JsonWhitespace,
        Meta(
            description="whitespace of JSON: compact: none; bounded: at most one space after commas and colons; "
            "spaced: exactly one; any: as JSON allows; a request may ask for either"
        ),
    ] = "bounded"
    jump_forward: Annotated[bool, Meta(description="append forced text of grammars without running the model")] = True
    kv_events: Annotated[
        str | None,
        Meta(description="ZMQ address to publish cache events at; tcp replays at the next port"),
    ] = None
    kv_events_format: Annotated[
        KvEventsFormat,
        Meta(
            description="layout of cache events: sglang's arrays, which also Dynamo and vLLM before 0.26 read, or the "
            "maps of vLLM, which also Dynamo and llm-d read"
        ),
    ] = "sglang"
    kv_events_topic: Annotated[
        str, Meta(max_length=1024, description="topic of cache events; llm-d expects kv@POD@MODEL")
    ] = ""
    role: Annotated[
        RoleName,
        Meta(
            description="prefill: compute prompts for decode runtimes; decode: fetch prompts from prefill runtimes; "
            "both: whatever the addresses allow"
        ),
    ] = "both"
    transfer_bind: Annotated[
        str | None,
        Meta(description="serve KV pages to other runtimes at tcp://HOST:PORT, with transfer_keys, or ipc://PATH"),
    ] = None
    prefill_workers: Annotated[
        str | None,
        Meta(description="transfer_bind of the prefill runtimes that compute prompts for this one, by commas"),
    ] = None
    transfer_keys: Annotated[
        str | None, Meta(description="folder of keys shared by runtimes that exchange KV, made by `ramiform keys`")
    ] = None
    transfer: Annotated[
        TransferName,
        Meta(description="carrier of KV pages; auto: NIXL between machines if it is installed, else ZMQ"),
    ] = "auto"
    remote_prefill_tokens: Annotated[
        int, Meta(ge=16, description="tokens that a prompt must lack in the cache to be fetched from a prefill runtime")
    ] = 256
    wait_for_loops: Annotated[
        bool,
        Meta(description="answer when the compiled loops are loaded, instead of computing without them until then"),
    ] = False
    speculative: Annotated[
        SpeculativeName | None,
        Meta(
            description="draft source; default: eagle when the model has a head beside it, else off, "
            "as for models under 50M parameters on a CPU; mtp drafts by the checkpoint's own prediction layers, "
            "early-exit by the model's first layers, suffix and ngram from texts, lookahead by the model's own n-grams"
        ),
    ] = None
    speculative_draft_model: Annotated[
        str | None,
        Meta(
            description="the heads (eagle, medusa) or the smaller model (draft): path or hub id; default: MODEL/draft"
        ),
    ] = None
    speculative_exit_layer: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="layers that draft with --speculative early-exit; default: a quarter of the model's"),
    ] = None
    speculative_num_steps: Annotated[int, Meta(ge=1, le=32, description="maximum depth of a draft")] = 7
    speculative_eagle_topk: Annotated[
        Annotated[int, Meta(ge=1, le=32)] | None,
        Meta(description="maximum children of a draft node; default: 4, for a head on a CPU 1"),
    ] = None
    speculative_num_draft_tokens: Annotated[
        int, Meta(ge=2, le=128, description="tokens verified at once for a request, the last known one included")
    ] = 8
    speculative_adaptive: Annotated[
        bool, Meta(description="draft and verify only as much as has paid lately; off: always everything")
    ] = True
    log_plans: Annotated[str | None, Meta(description="write every message, plan and result to this file")] = None

    @property
    def num_ranks(self) -> int:
        """Number of processes that compute."""
        return self.tp * self.pp

    @property
    def own_ranks(self) -> range:
        """Ranks on this node."""
        count = self.num_ranks // self.nnodes
        return range(self.node_rank * count, (self.node_rank + 1) * count)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of the frontends. Without a port they serve ZMQ clients only."""

    socket_dir: str  # mode 0700, made and removed by the frontend's owner
    host: Annotated[str, Meta(description="HTTP address to bind")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)] | None, Meta(description="HTTP port; 0: any free one")] = None
    uds: Annotated[str | None, Meta(description="serve HTTP at this Unix socket instead of a port")] = None
    ssl_certfile: Annotated[str | None, Meta(description="PEM certificates: HTTP becomes HTTPS")] = None
    ssl_keyfile: Annotated[str | None, Meta(description="PEM key of the certificate; default: in the same file")] = None
    bind: Annotated[str | None, Meta(description="serve remote programs at tcp://HOST:PORT; needs keys")] = None
    keys: Annotated[str | None, Meta(description="folder of the keys for bind, made by `ramiform keys`")] = None
    engine: Annotated[
        EngineName,
        Meta(
            description="who sends requests: HTTP's clients, or also the router of NVIDIA Dynamo, which the DYN_* "
            "variables describe"
        ),
    ] = "http"
    frontends: Annotated[
        int, Meta(ge=1, le=64, description="frontend processes that tokenise and serve HTTP and programs, for one core")
    ] = 1
    drain_seconds: Annotated[
        float, Meta(ge=0, le=86400, description="seconds for running requests to finish after SIGTERM")
    ] = 30.0
    api_key: Annotated[
        str | None,
        Meta(description="required as 'Authorization: Bearer KEY' when set; several are separated by commas"),
    ] = None
    admin_key: Annotated[
        str | None,
        Meta(description="API key that may act on others: flush the cache, abort all; several are separated by commas"),
    ] = None
    cache_scope: Annotated[
        CacheScope,
        Meta(description="who shares cached prefixes: requests of one API key, or all; auto: by key with several keys"),
    ] = "auto"
    cors_origins: Annotated[
        str | None, Meta(description="allowed origins of web pages, separated by commas, or *; default: none")
    ] = None
    page: Annotated[bool, Meta(description="serve the page for browsers at /: chat, programs, cache, health")] = True
    page_texts: Annotated[
        PageTextsName,
        Meta(
            description="show texts of prompts and outputs on the page; auto: to all who may see it, with several API "
            "keys only to the key that asked"
        ),
    ] = "auto"
    max_body_mib: Annotated[int, Meta(ge=1, le=1024, description="maximum size of an HTTP request's body in MiB")] = 32
    max_requests_per_key: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="concurrent HTTP requests per API key; default: no limit"),
    ] = None
    requests_per_minute_per_key: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="HTTP requests per API key and minute; default: no limit"),
    ] = None
    batch_dir: Annotated[
        str | None,
        Meta(
            description="folder of files and batches, which the next server in it goes on with; default: a temporary "
            "one that ends with the server"
        ),
    ] = None
    limit_mm_per_prompt: Annotated[str, Meta(description="maximum number of images in a prompt, as image=N")] = (
        "image=16"
    )
    max_image_bytes: Annotated[int, Meta(ge=1, le=1 << 30, description="maximum size of an image's file in bytes")] = (
        20 << 20
    )
    max_image_pixels: Annotated[
        int, Meta(ge=1, le=1 << 30, description="maximum number of an image's pixels, checked before it is decoded")
    ] = 40_000_000
    allow_image_hosts: Annotated[
        str | None,
        Meta(
            description="hosts from which images are downloaded, by commas, *.NAME for all under a name; never from "
            "addresses of private networks; default: none"
        ),
    ] = None
    request_timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="seconds for an HTTP request, its answer included; default: no limit"),
    ] = None
    max_connections: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="HTTP connections open at once; default: 4096, or what the limit of open files allows"),
    ] = None
    max_connections_per_address: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="HTTP connections of one client address (IPv6: /64 network); default: half of all"),
    ] = None
    trust_request_chat_template: Annotated[
        bool, Meta(description="let requests bring a chat template of their own, in the field chat_template")
    ] = False
    tool_call_parser: Annotated[
        Literal["auto", ToolFormatName],
        Meta(description="format of the model's tool calls; auto: as in its chat template"),
    ] = "auto"
    tool_calls: Annotated[
        ToolCallReading,
        Meta(description="whether an answer that is JSON, and a valid call, is one without its format's markers too"),
    ] = "lenient"
    reasoning_parser: Annotated[
        Literal["auto", "none", ReasoningFormatName],
        Meta(description="format of the model's reasoning, separated from answers; auto: as in its chat template"),
    ] = "auto"
    reranker: Annotated[
        RerankerName,
        Meta(description="prompt of a query and a document for scores of relevance; auto: as the model's name says"),
    ] = "auto"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="log level of all processes")
    ] = "warning"

    log_format: Annotated[
        Literal["auto", "rich", "json"], Meta(description="log format; auto: rich on a terminal, JSON lines otherwise")
    ] = "auto"
    log_requests: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="log a line for each HTTP request: route, status, tokens, seconds; auto: on a terminal"),
    ] = "auto"
    otlp_endpoint: Annotated[
        str | None, Meta(description="collector of OpenTelemetry traces over HTTP, e.g. http://localhost:4318")
    ] = None

    def share(self, limit: int | None) -> int | None:
        """Return one frontend's part of a limit that all share, rounded up."""
        return None if limit is None else -(-limit // self.frontends)

    def url(self, port: int | None) -> str:
        """Return the URL of the HTTP server; `port` is the bound port, None at a Unix socket."""
        if port is None:
            return f"unix:{self.uds}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.ssl_certfile is None else 'https'}://{host}:{port}"

    @property
    def client_address(self) -> str:
        return self.client_address_of(0)

    def client_address_of(self, frontend: int) -> str:
        """Return the address for programs. They connect to the first frontend, which may send them on."""
        return f"ipc://{self.socket_dir}/frontend" + (f"-{frontend}" if frontend else "")

    @property
    def core_address(self) -> str:
        return f"ipc://{self.socket_dir}/core"


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    core: CoreConfig
    serve: ServeConfig
