"""Which source drafts for a model, and making it. Refuses, with the reason, what cannot draft for this model."""

from __future__ import annotations

from pathlib import Path

import torch
from msgspec.structs import replace

from ..engine import kv_pool
from ..engine.build import choose_device
from ..engine.draft_source import DraftSource
from ..models.checkpoint import find_checkpoint
from ..models.config import ModelConfig
from ..models.decoder import Decoder
from ..models.load import load_model
from ..models.parameters import num_parameters
from ..models.read_config import read_config
from ..protocol.config import CoreConfig, SpeculativeName
from ..protocol.errors import RequestError
from ..tokenizer import load_tokenizer
from .draft_model import DraftModelSource
from .eagle import EagleSource, draft_memory, load_head, read_fitting_config

HEAD_FOLDER = "draft"  # the folder of the head, beside the model's config.json
_CHEAP_PARAMETERS = 50_000_000  # parameters; docs/log.md says what was measured


def choose_source(config: CoreConfig, path: Path) -> SpeculativeName:
    """What `--speculative` comes to for the checkpoint in directory `path`: as asked; else eagle, if a head is there
    and a pass is worth saving.

    Raises RequestError naming the setting when the choice lacks its model.
    """
    asked, given = config.speculative, config.speculative_draft_model
    has_head = (path / HEAD_FOLDER / "config.json").is_file()
    if asked is None and given is None:
        return "eagle" if has_head and not _is_cheap(config, path) else "off"
    if asked is None or (given is not None and asked not in ("eagle", "draft")):
        raise RequestError(
            "a draft model needs --speculative eagle (a head) or draft (a smaller model)", param="speculative"
        )
    if asked == "draft" and given is None:
        raise RequestError("--speculative draft needs --speculative-draft-model", param="speculative_draft_model")
    if asked == "eagle" and given is None and not has_head:
        raise RequestError(
            f"no draft head in {path / HEAD_FOLDER}: give its folder with --speculative-draft-model",
            param="speculative_draft_model",
        )
    return asked


def resolve_speculation(config: CoreConfig, path: Path) -> CoreConfig:
    """With the source and the width of its trees that are chosen where none are set. Of a head on a CPU chains are one
    compiled loop and as deep as a small tree; trees are grown by operators.

    Raises as `choose_source` does.
    """
    source, top_k = choose_source(config, path), config.speculative_eagle_topk
    if source == "eagle" and top_k is None and choose_device(config.device).type == "cpu":
        top_k = 1
    return replace(config, speculative=source, speculative_eagle_topk=top_k)


def build_source(
    config: CoreConfig, path: Path, target: Decoder, *, num_pages: int, num_host_pages: int
) -> DraftSource | None:
    """The source that runs beside `target`, the model of the checkpoint in `path`, in a pool of so many pages. None
    where guesses come from elsewhere, or none do.

    Raises CheckpointError or RequestError when the draft model cannot draft for this target.
    """
    name = choose_source(config, path)
    if name != "off" and target.rope.depends_on_length:
        if config.speculative is None:
            return None
        raise RequestError(
            "the model's rotary scaling changes with the length of the sequence, so a token means another thing at the "
            "end of a tree: such a model is served without speculation",
            param="speculative",
        )
    if name == "eagle":
        head = load_head(_head_folder(config, path), target)
        return EagleSource(head, num_pages, num_host_pages)
    if name == "draft":
        folder = find_checkpoint(config.speculative_draft_model)
        model = load_model(folder, device=target.device, dtype=target.dtype)
        _check_same_vocabulary(path, target, folder, model)
        return DraftModelSource(model, num_pages, num_host_pages)
    return None


def _is_cheap(config: CoreConfig, path: Path) -> bool:
    """Whether a pass of the model costs no more than the calls of its operators, of which drafting has as many."""
    return choose_device(config.device).type == "cpu" and num_parameters(read_config(path)) < _CHEAP_PARAMETERS


def draft_page_bytes(config: CoreConfig, path: Path, target: ModelConfig, dtype: torch.dtype) -> int:
    """What the source that `build_source` makes keeps for each page of the target's pool, before either is there.

    Raises as `build_source` does, as far as configurations tell.
    """
    name = choose_source(config, path)
    if name == "eagle":
        return draft_memory.bytes_per_page(read_fitting_config(_head_folder(config, path), target), dtype)
    if name == "draft":
        return kv_pool.bytes_per_page(read_config(find_checkpoint(config.speculative_draft_model)), dtype)
    return 0


def _head_folder(config: CoreConfig, path: Path) -> Path:
    given = config.speculative_draft_model
    return path / HEAD_FOLDER if given is None else Path(given).expanduser()


def _check_same_vocabulary(path: Path, target: Decoder, folder: Path, model: Decoder) -> None:
    ours, theirs = target.config.vocab_size, model.config.vocab_size
    reason = f"{theirs} tokens, the model {ours}" if ours != theirs else None
    if reason is None and load_tokenizer(path).token_bytes != load_tokenizer(folder).token_bytes:
        reason = "other tokens than the model"
    if reason is not None:
        raise RequestError(f"the draft model at {folder} has {reason}", param="speculative_draft_model")
