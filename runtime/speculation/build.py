"""Chooses and builds the draft source of a model, and refuses one that cannot draft for it.

Drafts from texts alone are made in `scheduler/drafts/`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from msgspec.structs import replace

from ..engine import kv_pool
from ..engine.build import choose_device
from ..engine.compile_kernels import compile_kernels
from ..engine.draft_source import DraftBytes, DraftSource
from ..engine.kv_size import MAX_RUNNING_ON_CUDA
from ..engine.paths.step_graphs import CudaCapture, LargestStep, StepGraphs
from ..models.checkpoint import find_checkpoint
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.errors import CheckpointError
from ..models.gguf.file import gguf_stem, is_gguf
from ..models.load import load_model
from ..models.parallel.stage import with_layers
from ..models.parameters import num_parameters
from ..models.read_config import read_config
from ..protocol.config import CoreConfig, SpeculativeName
from ..protocol.errors import RequestError
from ..tokenizer import load_tokenizer
from .draft_model import DraftModelSource
from .eagle import EagleSource, draft_memory, load_head, read_fitting_config, tensor_names
from .medusa import MedusaSource, is_medusa, load_medusa, medusa_bytes
from .mtp import MtpSource, load_mtp, mtp_bytes, read_mtp_layout

_CHEAP_PARAMETERS = 50_000_000  # measured: docs/inside/log.md
# Draft source of models without a head that pays: "off" or "suffix" (docs/inside/decisions/0016).
DEFAULT_SOURCE: SpeculativeName = "off"


def head_folder(path: Path) -> Path:
    """Return the folder of a model's own head: `draft` in that of a checkpoint, `FILE-draft` beside `FILE.gguf`."""
    return path / "draft" if path.is_dir() else path.with_name(f"{gguf_stem(path.name)}-draft")


def choose_source(config: CoreConfig, path: Path) -> SpeculativeName:
    """Resolve `--speculative` for the checkpoint in directory `path`: as requested; else eagle, if there is a head and
    a pass is worth saving; else `DEFAULT_SOURCE`.

    Raises RequestError naming the setting when the draft model is missing.
    """
    requested, draft_model = config.speculative, config.speculative_draft_model
    if config.streaming_window is not None:
        if requested not in (None, "off") or draft_model is not None:
            raise RequestError("speculation does not go with streaming_window", param="speculative")
        return "off"
    if config.speculative_exit_layer is not None and requested != "early-exit":
        raise RequestError("only --speculative early-exit exits from a layer", param="speculative_exit_layer")
    if requested == "early-exit" and config.num_ranks > 1:
        raise RequestError(
            f"--speculative early-exit drafts on one rank, and the model is on {config.num_ranks}", param="speculative"
        )
    own_head = head_folder(path)
    has_head = (own_head / "config.json").is_file()
    if requested is None and draft_model is None:
        if has_head and not _is_cheap(config, path):
            return "medusa" if is_medusa(own_head) else "eagle"
        return DEFAULT_SOURCE
    if requested is None or (draft_model is not None and requested not in ("eagle", "medusa", "draft")):
        raise RequestError(
            "a draft model needs --speculative eagle (a head), medusa (heads) or draft (a smaller model)",
            param="speculative",
        )
    if requested == "draft" and draft_model is None:
        raise RequestError("--speculative draft needs --speculative-draft-model", param="speculative_draft_model")
    if requested in ("eagle", "medusa") and draft_model is None and not has_head:
        raise RequestError(
            f"no draft head in {own_head}: give its folder with --speculative-draft-model",
            param="speculative_draft_model",
        )
    if draft_model is not None:
        _check_kind(requested, Path(draft_model).expanduser())
    return requested


def _check_kind(requested: SpeculativeName, path: Path) -> None:
    """Raise RequestError if a head is given as a model, a model as a head, or a head as one of the other kind."""
    found = _kind_of(path)
    if found is None or found == requested:
        return
    what = {"eagle": "an EAGLE head", "medusa": "a folder of Medusa heads", "draft": "a whole model"}[found]
    raise RequestError(
        f"{path} is {what}, which --speculative {found} drafts with, not --speculative {requested}",
        param="speculative_draft_model",
    )


def _kind_of(path: Path) -> SpeculativeName | None:
    """Return the source that drafts with what is at `path`; None if that cannot be told."""
    if is_gguf(path):
        return "draft"
    if not (path / "config.json").is_file():
        return None
    if is_medusa(path):
        return "medusa"
    try:
        names = tensor_names(path)
    except CheckpointError:
        return None  # in several files, or damaged: what loads it says so
    # An EAGLE head joins a feature and an embedding in `fc`; a model never does.
    return "eagle" if any(name.removeprefix("model.") == "fc.weight" for name in names) else "draft"


def resolve_speculation(config: CoreConfig, path: Path) -> CoreConfig:
    """Fill in the draft source and the tree width where they are not set.

    On a CPU a head drafts chains by default: those are one compiled loop, while trees are grown by operators. Raises as
    `choose_source` does.
    """
    source, top_k = choose_source(config, path), config.speculative_eagle_topk
    if read_config(path, config.model_impl).recurrent is not None:
        if top_k not in (None, 1):
            raise RequestError(
                f"speculative_eagle_topk {top_k}: a recurrent state follows one chain of draft tokens, not a tree",
                param="speculative_eagle_topk",
            )
        top_k = 1
    if source == "eagle" and top_k is None and choose_device(config.device).type == "cpu":
        top_k = 1
    return replace(config, speculative=source, speculative_eagle_topk=top_k)


def build_source(
    config: CoreConfig, path: Path, target: Decoder, *, num_pages: int, num_host_pages: int
) -> DraftSource | None:
    """Build the draft source for `target`, the model of the checkpoint in `path`, with memory for the same pages.

    Returns None without speculation, and for drafts from texts, which the scheduler makes. Raises CheckpointError or
    RequestError when the draft model cannot draft for this target.
    """
    name = choose_source(config, path)
    if (refusal := _refusal(name, target)) is not None:
        if config.speculative is None:
            return None
        raise RequestError(refusal, param="speculative")
    match name:
        case "eagle":
            head = load_head(_head_folder(config, path), target)
            return EagleSource(head, num_pages, num_host_pages)
        case "medusa":
            return MedusaSource(load_medusa(_head_folder(config, path), target), target.whole_config)
        case "mtp":
            layout = read_mtp_layout(path, target.whole_config)
            return MtpSource(load_mtp(path, layout, target), layout, num_pages, num_host_pages)
        case "early-exit":
            first = target.first_layers(_exit_layer(config, target.config))
            return DraftModelSource(first, num_pages, num_host_pages)
        case "draft":
            model = _load_draft_model(config, path, target)
            return _draft_model_source(config, model, num_pages, num_host_pages)
        case _:
            return None


def _refusal(name: SpeculativeName, target: Decoder) -> str | None:
    """Return why drafts of the source `name` cannot be made or verified for `target`; None: they can."""
    if name in ("eagle", "medusa", "mtp", "early-exit") and not target.config.is_native:
        return (
            f"{name} reads hidden states of native families; transformers computes this model: "
            "use --speculative suffix, ngram or draft"
        )
    if target.config.recurrent is None:
        return None
    if name in ("eagle", "medusa", "early-exit"):
        return f"{name} is not for models with recurrent layers: use --speculative mtp, suffix, ngram or draft"
    if name == "lookahead":
        return (
            "lookahead verifies trees of draft tokens, and a recurrent state follows one chain: use --speculative "
            "mtp, suffix or ngram"
        )
    return None


def _load_draft_model(config: CoreConfig, path: Path, target: Decoder) -> Decoder:
    """Load the smaller model that drafts for `target`. Raises RequestError when it cannot."""
    folder = find_checkpoint(config.speculative_draft_model)
    draft_config = read_config(folder, config.model_impl)
    _check_same_vocabulary(path, target.config, folder, draft_config)
    model = load_model(folder, draft_config, device=target.device, dtype=target.dtype)
    if model.config.recurrent is not None:
        raise RequestError(
            f"{model.config.architecture} has recurrent layers: it cannot be a draft model",
            param="speculative_draft_model",
        )
    return model


def _draft_model_source(config: CoreConfig, model: Decoder, num_pages: int, num_host_pages: int) -> DraftModelSource:
    """Build the source of a draft model, with CUDA graphs of its steps where these are on."""
    if not config.cuda_graphs or model.device.type != "cuda":
        return DraftModelSource(model, num_pages, num_host_pages)
    compile_kernels(model, model.dtype)

    def make_graphs(draft: Decoder, pool: kv_pool.KvPool) -> StepGraphs:
        return StepGraphs(draft, pool, LargestStep(_most_drafting(config), draft.config.context_length), CudaCapture())

    with torch.inference_mode():
        return DraftModelSource(
            model, num_pages, num_host_pages, num_scratch=_scratch_pages(config), make_graphs=make_graphs
        )


def _is_cheap(config: CoreConfig, path: Path) -> bool:
    """Return True if a pass of the model costs no more than the operator calls of drafting."""
    return (
        choose_device(config.device).type == "cpu"
        and num_parameters(read_config(path, config.model_impl)) < _CHEAP_PARAMETERS
    )


def draft_bytes(config: CoreConfig, path: Path, target: ModelConfig, dtype: torch.dtype) -> DraftBytes:
    """Return the memory that the source of `build_source` needs, before either is loaded.

    Raises as `build_source` does, as far as configurations tell.
    """
    name = choose_source(config, path)
    if name == "eagle":
        folder = _head_folder(config, path)
        page = draft_memory.bytes_per_page(read_fitting_config(folder, target), dtype)
        return DraftBytes(page, sum(file.stat().st_size for file in folder.glob("*.safetensors")))
    if name == "medusa":
        return DraftBytes(0, medusa_bytes(_head_folder(config, path)))
    if name == "mtp":
        context = config.context_length or target.context_length
        return mtp_bytes(read_mtp_layout(path, target), dtype, context)
    if name == "early-exit":
        page = kv_pool.bytes_per_page(with_layers(target, range(_exit_layer(config, target))), dtype)
        return DraftBytes(page, _scratch_pages(config) * page)
    if name == "draft":
        folder = find_checkpoint(config.speculative_draft_model)
        draft = read_config(folder, config.model_impl)
        _check_same_vocabulary(path, target, folder, draft)
        page = kv_pool.bytes_per_page(draft, dtype)
        return DraftBytes(page, num_parameters(draft) * dtype.itemsize + _scratch_pages(config) * page)
    return DraftBytes(0, 0)


def _exit_layer(config: CoreConfig, target: ModelConfig) -> int:
    """Return the number of layers that draft. Raises RequestError if these are not fewer than the model's."""
    chosen, total = config.speculative_exit_layer, target.num_layers
    if chosen is None:
        chosen = max(1, total // 4)
    if chosen >= total:
        raise RequestError(
            f"a draft of {chosen} layers, of a model of {total}, skips none", param="speculative_exit_layer"
        )
    return chosen


def _most_drafting(config: CoreConfig) -> int:
    """Return the most rows that a draft model decodes at once."""
    return min(config.max_running or MAX_RUNNING_ON_CUDA, config.prefill_budget)


def _scratch_pages(config: CoreConfig) -> int:
    """Return how many pages hold the drafts of all rows, each behind an unfinished page."""
    return _most_drafting(config) * -(-(kv_pool.PAGE_SIZE + config.speculative_num_steps) // kv_pool.PAGE_SIZE)


def _head_folder(config: CoreConfig, path: Path) -> Path:
    draft_model = config.speculative_draft_model
    return head_folder(path) if draft_model is None else Path(draft_model).expanduser()


def _check_same_vocabulary(path: Path, target: ModelConfig, folder: Path, draft: ModelConfig) -> None:
    ours, theirs = target.vocab_size, draft.vocab_size
    reason = f"{theirs} tokens, the model {ours}" if ours != theirs else None
    if reason is None and load_tokenizer(path).token_bytes != load_tokenizer(folder).token_bytes:
        reason = "other tokens than the model"
    if reason is not None:
        raise RequestError(f"the draft model at {folder} has {reason}", param="speculative_draft_model")
