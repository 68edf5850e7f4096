"""Construction of an engine from a CoreConfig: device, dtypes, op set, KV memory, CUDA graphs."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from ...kernels import Ops, StreamingSizes, for_device
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.experts.routes import RECORDED, ExpertRoutes, route_bytes
from ..models.gguf.file import is_gguf
from ..models.load import load_model
from ..models.parallel.group import SINGLE_RANK, Group, SingleRank, is_rank_zero
from ..models.parallel.shard import shard_of
from ..models.parallel.stage import layer_counts
from ..models.parameters import num_parameters
from ..models.pictures.features import PictureFeatures
from ..models.pictures.tower import PictureTower
from ..models.read_config import read_config
from ..models.stored.changing_weights import ChangingWeights
from ..models.stored.kv_scales import KvConstants
from ..models.stored.weight_source import WeightSource
from ..models.stored.weights import Progress
from ..protocol.config import CoreConfig
from ..protocol.errors import RequestError
from ..tokenizer.image_processors import READERS
from .compile_kernels import compile_kernels
from .cpu_threads import CpuThreads, usable_cpus
from .draft_source import DraftBytes, DraftSource
from .engine import ForwardEngine
from .kv_format import ChosenScales, choose_kv_dtype, choose_scales, given_scales, is_scaled
from .kv_pool import PAGE_SIZE, CudaCopyQueue, KvMemory, KvPool, WindowMemory, bytes_per_page
from .kv_size import MeasureMemory, MemoryUse, choose_max_running, measure_memory, pages_by_setting, pages_from_memory
from .paths import EngineParts
from .paths.step_graphs import CudaCapture, LargestStep, StepGraphs
from .state_slots import allocate_states, check_recurrent_settings, limit_running
from .window_size import WindowShare, window_share

logger = logging.getLogger("ramiform.engine")

STREAMING_CONTEXT = 1 << 18  # tokens of a sequence with a rolling window, by default
_SMALL = 200_000_000  # parameters; below it a CPU is faster in float32 than in bfloat16
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_ops(config: CoreConfig, model: ModelConfig, device: torch.device) -> Ops | None:
    """Return the op set that the settings ask for; None: the decoder chooses by model and device.

    Raises RequestError naming the setting when Triton is not installed or has no such op.
    """
    if config.kernels == "triton" and importlib.util.find_spec("triton") is None:
        raise RequestError("kernels 'triton' need the package triton: install ramiform[gpu]", param="kernels")
    cap = model.attention_cap
    if not config.deterministic:
        return None if config.kernels == "auto" else for_device(device, config.kernels, attention_cap=cap)
    return for_device(device, config.kernels, deterministic=True, attention_cap=cap)


class DraftSourceFactory(Protocol):
    """Constructor of a draft source."""

    def __call__(self, target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        """Return the draft source for a target whose pool has so many pages; None: there is none."""


# Memory that a draft source takes, by its target's config and the dtype of weights and KV.
DraftMemory = Callable[[ModelConfig, torch.dtype], DraftBytes]


def build_engine(
    config: CoreConfig,
    path: Path,
    on_progress: Progress | None = None,
    make_source: DraftSourceFactory | None = None,
    group: Group = SINGLE_RANK,
    draft_memory: DraftMemory | None = None,
) -> ForwardEngine:
    """Load the checkpoint in directory `path`, and the draft source beside it if any, and return the engine.

    With several ranks it holds the part of model and KV of `group`'s rank. With `config.picture_bytes` it computes
    pictures too.

    Raises CheckpointError when the checkpoint cannot be served. Raises RequestError, naming the setting, when the
    device does not exist or lacks the KV's dtype, when the context is longer than the model's, and when the KV memory
    that the settings give cannot hold one sequence or exceeds the device's.
    """
    resolved = _resolve(config, path, group)
    group, device, context_length = resolved.group, resolved.device, resolved.context_length
    # The draft source's memory comes out of the same budget.
    draft = DraftBytes(0, 0) if draft_memory is None else draft_memory(resolved.whole_config, resolved.dtype)
    sizes = _page_sizes(config, resolved, draft)
    pages_by_setting(config, context_length, sizes.page)  # which may raise an error: before the weights are loaded
    if device.type == "cpu":
        # Ranks share the processors. A fixed number of slices also fixes the threads that divide their products.
        threads = config.cpu_threads or min(torch.get_num_threads(), usable_cpus())
        torch.set_num_threads(max(1, threads // group.shard.num_slices))
    model = _load(config, path, resolved, on_progress)
    scales = choose_scales(resolved.given_scales, config, path, model, resolved.kv_dtype, group)
    num_state_bytes = allocate_states(config, model)
    make_graphs = _graphs_factory(config, resolved, model)
    measure = _measurement(config, resolved, model, scales.constants, make_graphs, draft)
    num_pages, share = _count_pages(config, resolved, sizes, num_state_bytes, measure)
    max_running = limit_running(config, model, choose_max_running(config, device, num_pages))
    num_host_pages = int(config.host_kv_memory * 2**30) // sizes.page
    pool = _allocate_pool(config, resolved, scales.constants, num_pages, num_host_pages, share)
    source = None
    if make_source is not None:
        source = make_source(model, num_pages=num_pages, num_host_pages=num_host_pages)
    if device.type == "cuda" and resolved.num_ranks > 1:
        # With one rank when the engine warms up:
        compile_kernels(model, resolved.kv_dtype, is_scaled=pool.is_scaled)
    graphs = None
    if make_graphs is not None and StepGraphs.supports(model, pool.layers):
        captures = () if source is None else source.captures
        graphs = make_graphs(pool, max_rows=min(max_running, config.prefill_budget), captures=captures)
        if resolved.num_ranks > 1:
            with torch.inference_mode():
                graphs.capture_all()  # here, because all ranks do it together
    return ForwardEngine(
        EngineParts(model, pool, group, source, graphs),
        context_length=context_length,
        max_running=max_running,
        kv_scales=scales,
        threads=_threads(config, resolved) if device.type == "cpu" else None,
        path=path,
        weights=ChangingWeights(
            path, config, resolved.whole_config, lambda weights: _load(config, path, resolved, None, source=weights)
        ),
    )


@dataclass(frozen=True)
class _Resolved:
    """Choices that settings, checkpoint and device make together, before the weights are loaded."""

    group: Group
    device: torch.device
    whole_config: ModelConfig
    model_config: ModelConfig  # this rank's part
    streaming: StreamingSizes | None  # of attention to a rolling window; None: attention is the model's own
    num_weights: int  # of the whole model
    dtype: torch.dtype
    kv_dtype: torch.dtype
    kv_scaled: bool  # codes of keys and values have scales of their own
    given_scales: ChosenScales | None  # of the whole model, that files have
    context_length: int

    @property
    def num_ranks(self) -> int:
        return self.group.shard.size * self.group.stage.size


def _resolve(config: CoreConfig, path: Path, group: Group) -> _Resolved:
    """Read the model's config, and choose device, dtypes, context and this rank's part. Raises RequestError for
    settings that do not go with the model."""
    if config.picture_bytes and is_gguf(path):
        raise RequestError(
            "images are read of folders of safetensors only, and no GGUF or mmproj file has them here: leave out "
            "picture_bytes, or give such a folder",
            param="picture_bytes",
        )
    whole_config = read_config(path, config.model_impl)
    if not whole_config.is_native:
        _check_transformers_settings(config, group)
        logger.info("transformers computes the layers of %s", whole_config.architecture)
    _check_picture_settings(config, whole_config)
    _check_route_settings(config, whole_config)
    device = choose_device(config.device)
    if config.cpu_threads is not None and device.type != "cpu":
        raise RequestError(f"cpu_threads {config.cpu_threads} is for CPUs; the device is {device}", param="cpu_threads")
    check_recurrent_settings(config, whole_config, group, device)
    streaming = _streaming(config, group)
    if streaming is not None:
        whole_config = _streamed(whole_config, streaming)
    if config.ep > 1 and group.shard.size == 1:
        raise RequestError(f"ep {config.ep} is neither 1 nor tp, 1: the processes of tp hold the experts", param="ep")
    if config.deterministic and group is SINGLE_RANK:
        group = SingleRank(shard_of(whole_config, rank=0, size=1, ordered=True))
    model_config = group.shard.local(group.stage.local(whole_config))
    num_weights = num_parameters(whole_config)
    dtype = choose_dtype(config.dtype, device, num_weights)
    context_length = _context_length(config, model_config)
    if streaming is None:
        model_config = replace(model_config, rope=model_config.rope.within(context_length))
    head_dim, is_latent = model_config.head_dim, model_config.latent is not None
    kv_dtype = choose_kv_dtype(config.kv_dtype, dtype, device, head_dim=head_dim, is_latent=is_latent)
    given = given_scales(config, path, whole_config, kv_dtype)
    if config.picture_bytes and whole_config.rope.axes and is_scaled(kv_dtype, whole_config, given):
        raise RequestError(
            f"kv_dtype {config.kv_dtype!r} is relative to positions of one number, and images of "
            f"{whole_config.architecture} have three: use auto, or leave out picture_bytes",
            param="kv_dtype",
        )
    return _Resolved(
        group,
        device,
        whole_config,
        model_config,
        streaming,
        num_weights,
        dtype,
        kv_dtype,
        is_scaled(kv_dtype, whole_config, given),
        given,
        context_length,
    )


def _check_picture_settings(config: CoreConfig, model: ModelConfig) -> None:
    """Raise RequestError for a model that reads text only, or a setting with which it reads no pictures."""
    if not config.picture_bytes:
        return
    if not model.tower:
        raise RequestError(f"{model.architecture} reads text only here: leave out picture_bytes", param="picture_bytes")
    reader = READERS[model.architecture]
    if reader.is_grid and not model.rope.axes:
        raise RequestError(f"{model.architecture}: config.json has no mrope_section of its heads' size", param="model")
    refused = {"deterministic": "attend both ways", "streaming_window": "attend both ways"}
    refused = refused if reader.attends_both_ways else {}
    refused |= {"streaming_window": "have positions of three numbers"} if reader.is_grid else {}
    refused |= {"pp": "go into several layers"} if reader.is_deep and config.pp > 1 else {}
    for setting, reason in refused.items():
        if getattr(config, setting):
            raise RequestError(
                f"{setting} is not for images of {model.architecture}, which {reason}: leave it out, or picture_bytes",
                param=setting,
            )


# Settings with which experts are recorded; any other one has to have its default.
_GOES_WITH_ROUTES = frozenset(
    "enable_return_routed_experts model served_model_name model_impl lora max_loras max_lora_rank device cpu_threads "
    "dtype tp ep context_length num_pages kv_memory mem_fraction kernels deterministic cuda_graphs overlap "
    "prefill_budget max_running max_waiting prefix_cache order eviction host_kv_memory grammar_backend grammar_memory "
    "additional_properties number_digits json_whitespace jump_forward kv_events kv_events_format kv_events_topic "
    "wait_for_loops speculative speculative_draft_model speculative_exit_layer speculative_num_steps "
    "speculative_eagle_topk speculative_num_draft_tokens speculative_adaptive".split()
)


def _check_route_settings(config: CoreConfig, model: ModelConfig) -> None:
    """Raise RequestError for a model or a setting with which no experts are recorded."""
    if not config.enable_return_routed_experts:
        return
    if not model.is_native or model.architecture not in RECORDED:
        raise RequestError(
            f"the experts of {model.architecture} are not recorded, those of {', '.join(sorted(RECORDED))} are: leave "
            "out enable_return_routed_experts",
            param="enable_return_routed_experts",
        )
    defaults = CoreConfig()
    for setting, value in msgspec.structs.asdict(config).items():
        if setting not in _GOES_WITH_ROUTES and value != getattr(defaults, setting):
            raise RequestError(
                f"{setting} is not known to go with enable_return_routed_experts: leave out one of both",
                param=setting,
            )


@dataclass(frozen=True)
class _PageSizes:
    """Bytes of a page, with the draft source's part. Pages hold all layers, or with `share` those without a window."""

    page: int
    whole_page: int  # of all layers
    share: WindowShare | None


def _page_sizes(config: CoreConfig, resolved: _Resolved, draft: DraftBytes) -> _PageSizes:
    model_config, group, kv_dtype = resolved.model_config, resolved.group, resolved.kv_dtype
    scaled = resolved.kv_scaled
    # Pages have the same numbers on every stage, so there are as many as the largest stage has memory for.
    largest = replace(model_config, num_layers=max(layer_counts(resolved.whole_config, group.stage.size)))
    share = window_share(config, model_config, group, resolved.device, resolved.context_length)
    beside = draft.per_page + PAGE_SIZE * (route_bytes(model_config) if config.enable_return_routed_experts else 0)
    whole_page = beside + bytes_per_page(largest, kv_dtype, is_scaled=scaled)
    page = whole_page
    if share is not None:
        page = beside + share.page_bytes(model_config, kv_dtype, is_scaled=scaled)
    return _PageSizes(page, whole_page, share)


def _load(
    config: CoreConfig,
    path: Path,
    resolved: _Resolved,
    on_progress: Progress | None,
    *,
    source: WeightSource | None = None,
) -> Decoder:
    """Load the weights of this rank's part: those of the checkpoint, or of `source`."""
    ops = choose_ops(config, resolved.model_config, resolved.device)
    model = load_model(
        source or path,
        resolved.whole_config if resolved.streaming else resolved.whole_config.within(resolved.context_length),
        device=resolved.device,
        dtype=resolved.dtype,
        quantize=config.quantize,
        ops=ops,
        on_progress=on_progress,
        group=resolved.group,
    )
    if config.picture_bytes and resolved.group.stage.has_ends:
        place = {"device": resolved.device, "dtype": resolved.dtype}
        has_tower = is_rank_zero(resolved.group)
        tower = PictureTower(path, resolved.whole_config, **place) if has_tower else None
        model.pictures = PictureFeatures(tower, config.picture_bytes, group=resolved.group, **place)
    return model


def _threads(config: CoreConfig, resolved: _Resolved) -> CpuThreads:
    packed = config.quantize is not None or resolved.whole_config.quantisation is not None
    return CpuThreads(resolved.num_weights, fixed=config.deterministic, packed=packed)


class _GraphsFactory(Protocol):
    """Constructor of the graphs of a model that keeps its KV in `pool`, and of the captures of a draft source."""

    def __call__(self, pool: KvPool, *, max_rows: int, captures: Sequence[int] = ()) -> StepGraphs: ...


def _graphs_factory(config: CoreConfig, resolved: _Resolved, model: Decoder) -> _GraphsFactory | None:
    """Return the constructor of CUDA graphs; None: steps run without."""
    if not config.cuda_graphs or resolved.device.type != "cuda" or resolved.streaming is not None:
        return None
    if config.enable_return_routed_experts:
        return None

    def make_graphs(pool: KvPool, *, max_rows: int, captures: Sequence[int] = ()) -> StepGraphs:
        largest = LargestStep(
            max_rows, resolved.context_length, config.prefill_budget, config.speculative_num_draft_tokens
        )
        return StepGraphs(model, pool, largest, CudaCapture(), captures=captures, group=resolved.group)

    return make_graphs


def _measurement(
    config: CoreConfig,
    resolved: _Resolved,
    model: Decoder,
    constants: KvConstants | None,
    make_graphs: _GraphsFactory | None,
    draft: DraftBytes,
) -> MeasureMemory:
    """Return the measurement of a CUDA device's memory with the model on it, which is made once."""
    # Speculation that is not set is on where a draft source takes memory.
    drafts = config.speculative not in (None, "off") or draft.per_page > 0

    @cache
    def measure(*, max_running: int) -> MemoryUse:
        use = measure_memory(
            model,
            resolved.kv_dtype,
            constants,
            resolved.group,
            num_tokens=config.prefill_budget,
            num_rows=min(max_running, config.prefill_budget),
            num_drafts=resolved.group.least(config.speculative_num_draft_tokens - 1 if drafts else 0),
            make_graphs=make_graphs,
        )
        return replace(use, free=use.free - draft.weights)

    return measure


def _count_pages(
    config: CoreConfig, resolved: _Resolved, sizes: _PageSizes, num_state_bytes: int, measure: MeasureMemory
) -> tuple[int, WindowShare | None]:
    """Return the number of pages, the same on every rank, and the share of layers with a window that goes with it."""

    def count(page: int) -> int:
        num_pages = pages_by_setting(config, resolved.context_length, page)
        if num_pages is None:
            num_pages = pages_from_memory(
                config,
                resolved.device,
                resolved.context_length,
                page,
                num_sharing=len(config.own_ranks),
                num_state_bytes=num_state_bytes,
                measure=measure,
            )
        return resolved.group.least(num_pages)

    num_pages = count(sizes.page)
    if sizes.share is not None and not sizes.share.suffices(num_pages):
        return count(sizes.whole_page), None
    return num_pages, sizes.share


def _allocate_pool(
    config: CoreConfig,
    resolved: _Resolved,
    constants: KvConstants | None,
    num_pages: int,
    num_host_pages: int,
    share: WindowShare | None,
) -> KvPool:
    """Allocate the KV of pages, window pages and host pages. Raises RequestError, naming the setting, if there is no
    room."""
    model_config, device = resolved.model_config, resolved.device
    stored = resolved.kv_dtype, resolved.kv_scaled
    setting = "kv_memory" if config.num_pages is None else "num_pages"
    num_full_layers = None if share is None else share.num_full_layers
    memory = _memory(model_config, num_pages, device, stored, param=setting, num_layers=num_full_layers)
    windows = None
    if share is not None:
        count, num_layers = share.num_window_pages(num_pages), share.num_window_layers
        own = _memory(model_config, count, device, stored, param=setting, num_layers=num_layers)
        windows = WindowMemory(own, share.has_window)
    pinned = device.type == "cuda" and num_host_pages > 0
    host = _memory(model_config, num_host_pages, torch.device("cpu"), stored, param="host_kv_memory", pinned=pinned)
    queue = CudaCopyQueue(device, model_config.num_kv_layers) if pinned else None
    routes = None
    if config.enable_return_routed_experts:
        routes = ExpertRoutes(resolved.whole_config, (num_pages + num_host_pages) * PAGE_SIZE, device)
    return KvPool(memory, host, constants, queue, windows, routes)


def _check_transformers_settings(config: CoreConfig, group: Group) -> None:
    """Raise RequestError for a setting that models computed by transformers do not know."""
    reasons = {
        "tp": "its layers are not divided" if group.shard.size > 1 else None,
        "pp": "its layers are not divided" if group.stage.size > 1 else None,
        "deterministic": "its products depend on the batch" if config.deterministic else None,
        "quantize": "its weights stay as they are stored" if config.quantize is not None else None,
    }
    for setting, reason in reasons.items():
        if reason is not None:
            raise RequestError(
                f"{setting} needs a native family; transformers computes this model: {reason}", param=setting
            )


def _streaming(config: CoreConfig, group: Group) -> StreamingSizes | None:
    """Return the sizes of attention to sinks and a rolling window; None: attention is the model's own.

    Raises RequestError for settings that do not go with it.
    """
    if config.streaming_window is None:
        return None
    refused = {
        "tp": group.shard.size > 1,
        "pp": group.stage.size > 1,
        "deterministic": config.deterministic,
        "transfer_bind": config.transfer_bind is not None,
        "prefill_workers": config.prefill_workers is not None,
        "transfer_keys": config.transfer_keys is not None,
    }
    if (setting := next((name for name, is_set in refused.items() if is_set), None)) is not None:
        raise RequestError(f"{setting} does not go with streaming_window", param=setting)
    return StreamingSizes(config.streaming_window, config.streaming_sinks)


def _streamed(model: ModelConfig, streaming: StreamingSizes) -> ModelConfig:
    try:
        return model.streamed(streaming)
    except ValueError as error:
        raise RequestError(
            f"streaming_window {streaming.window} is not for this {model.architecture}: {error}",
            param="streaming_window",
        ) from None


def _memory(
    model: ModelConfig,
    num_pages: int,
    device: torch.device,
    stored: tuple[torch.dtype, bool],
    *,
    param: str,
    pinned: bool = False,
    num_layers: int | None = None,
) -> KvMemory:
    """Allocate pages of `stored`, a dtype and whether its codes have scales of their own."""
    dtype, is_scaled = stored
    try:
        return KvMemory(
            model, num_pages, device=device, dtype=dtype, is_scaled=is_scaled, pinned=pinned, num_layers=num_layers
        )
    except (RuntimeError, MemoryError, torch.OutOfMemoryError):
        gibibytes = num_pages * bytes_per_page(model, dtype, is_scaled=is_scaled) / 2**30
        raise RequestError(
            f"{num_pages} pages of KV take {gibibytes:,.1f} GiB, more than {device} has: lower {param}", param=param
        ) from None


def choose_device(name: str) -> torch.device:
    """Return the device of a setting; `auto` is the first CUDA device, or else the CPU. Raises RequestError when there
    is no such device."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise RequestError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}", param="device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RequestError(f"device {name!r} does not exist: found {torch.cuda.device_count()} of cuda", param="device")
    return device


def choose_dtype(name: str, device: torch.device, num_parameters: int) -> torch.dtype:
    """Return the dtype of a setting; `auto` is float32 for small models on a CPU, else bfloat16."""
    if name != "auto":
        return _DTYPES[name]
    return torch.float32 if device.type == "cpu" and num_parameters < _SMALL else torch.bfloat16


def _context_length(config: CoreConfig, model: ModelConfig) -> int:
    if model.streaming is not None:
        return config.context_length or STREAMING_CONTEXT
    wanted = config.context_length or model.context_length
    if wanted > model.context_length:
        raise RequestError(
            f"context_length {wanted} is longer than the model's {model.context_length}", param="context_length"
        )
    return wanted
