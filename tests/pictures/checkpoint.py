"""A small random checkpoint that reads pictures, with the shipped tokenizer; transformers' own model is its judge."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.protocol.pictures import Picture
from ramiform.runtime.tokenizer.image_processors import PictureProcessor, PreparedPicture, placed_pictures

TILE = 32  # pixels of a tile's side
TOKENS = [
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
    *("[IMG]", "[IMG_BREAK]", "[IMG_END]", "<img>", "<IMG_CONTEXT>", "</img>"),
    *("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>"),
] + [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
INPUTS = ("pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes")
CALLS: dict[str, dict[str, Any]] = {
    "Mistral3": {"patch_size": {"height": 16, "width": 16}},
    "InternVL": {"crop_to_patches": True},
}
TYPES = {"Gemma3": "token_type_ids"} | dict.fromkeys(
    ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "Qwen3VLMoe"), "mm_token_type_ids"
)
Part = str | Image.Image


class Made(NamedTuple):
    """A checkpoint's folder, its tokenizer with the added tokens, and the judge."""

    path: Path
    kind: str
    tokenizer: Tokenizer
    model: Any


def make_checkpoint(path: Path, kind: str) -> Made:
    """Write a checkpoint of `kind`, a key of `KINDS`, to the folder `path`."""
    tokenizer = Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in TOKENS])
    settings, processor = KINDS[kind]
    text = {"vocab_size": tokenizer.get_vocab_size(), "hidden_size": 48, "intermediate_size": 80,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 512, "initializer_range": 0.2,
            "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}  # fmt: skip
    own = settings(tokenizer)
    config = getattr(transformers, f"{kind}Config")(**own | {"text_config": text | own["text_config"]})
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):  # which is zero at first
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return Made(path, kind, tokenizer, model)


_VISION = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 3,
           "image_size": TILE, "patch_size": 8, "initializer_range": 0.3}  # fmt: skip


def _idefics(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"image_token_id": tokenizer.token_to_id("<image>"), "scale_factor": 2, "vision_config": _VISION,
            "text_config": {"model_type": "llama"}}  # fmt: skip


def _gemma(tokenizer: Tokenizer) -> dict[str, Any]:
    text = {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "num_hidden_layers": 3,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    return {"image_token_index": tokenizer.token_to_id("<image_soft_token>"),
            "boi_token_index": tokenizer.token_to_id("<start_of_image>"),
            "eoi_token_index": tokenizer.token_to_id("<end_of_image>"),
            "mm_tokens_per_image": 16, "vision_config": _VISION | {"image_size": 2 * TILE},
            "text_config": text}  # fmt: skip


def _qwen(tokenizer: Tokenizer) -> dict[str, Any]:
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "embed_dim": 32,
        "num_heads": 2,
        "mlp_ratio": 2,
        "intermediate_size": 40,
        "out_hidden_size": 48,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "window_size": 32,
        "fullatt_block_indexes": [1],
        "initializer_range": 0.2,
    }
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2, 3]}
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
    }
    return {**{field: tokenizer.token_to_id(name) for field, name in names.items()}, "vision_config": vision,
            "text_config": {"rope_parameters": rope}}  # fmt: skip


def _qwen2(tokenizer: Tokenizer) -> dict[str, Any]:
    own = _qwen(tokenizer)
    return own | {"vision_config": own["vision_config"] | {"hidden_size": 48}}  # of the text


def _llava(tokenizer: Tokenizer) -> dict[str, Any]:
    return {"image_token_index": tokenizer.token_to_id("<image>"), "text_config": {"model_type": "llama"},
            "vision_config": _VISION | {"model_type": "clip_vision_model"}}  # fmt: skip


def _mistral(tokenizer: Tokenizer) -> dict[str, Any]:
    vision = {
        "model_type": "pixtral",
        "image_size": 2 * TILE,
        "patch_size": 8,
        "hidden_size": 32,
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "initializer_range": 0.3,
    }
    return {"image_token_index": tokenizer.token_to_id("[IMG]"), "text_config": {"model_type": "mistral"},
            "vision_config": vision, "spatial_merge_size": 2}  # fmt: skip


def _internvl(tokenizer: Tokenizer) -> dict[str, Any]:
    vision = {
        "image_size": [TILE, TILE],
        "patch_size": [8, 8],
        "hidden_size": 24,
        "num_attention_heads": 3,
        "num_hidden_layers": 2,
        "intermediate_size": 40,
        "initializer_range": 0.3,
    }
    return {"image_token_id": tokenizer.token_to_id("<IMG_CONTEXT>"), "text_config": {"model_type": "qwen2"},
            "vision_config": vision}  # fmt: skip


def _qwen3(tokenizer: Tokenizer) -> dict[str, Any]:
    own = _qwen(tokenizer)
    vision = {name: own["vision_config"][name] for name in ("depth", "hidden_size", "num_heads", "intermediate_size",
              "out_hidden_size", "patch_size", "spatial_merge_size", "initializer_range")}  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    return own | {
        "vision_config": vision | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64},
        "text_config": {"num_hidden_layers": 3, "head_dim": 16, "rope_parameters": rope},
    }


def _qwen3_experts(tokenizer: Tokenizer) -> dict[str, Any]:
    own = _qwen3(tokenizer)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "decoder_sparse_step": 1}
    return own | {"text_config": own["text_config"] | experts}


_SQUARE = {"height": TILE, "width": TILE}
_PATCHES = {"patch_size": 8, "merge_size": 2, "size": {"shortest_edge": 16 * 16, "longest_edge": 64 * 64}}
_TILES = {"size": {"longest_edge": 2 * TILE}, "max_image_size": {"longest_edge": TILE}}
KINDS: dict[str, tuple[Callable[[Tokenizer], dict[str, Any]], Any]] = {
    "SmolVLM": (_idefics, SmolVLMImageProcessorPil(**_TILES)),
    "Idefics3": (_idefics, Idefics3ImageProcessorPil(**_TILES)),
    "Qwen2VL": (_qwen2, Qwen2VLImageProcessorPil(**_PATCHES)),
    "Qwen2_5_VL": (_qwen, Qwen2VLImageProcessorPil(**_PATCHES)),
    "Qwen3VL": (_qwen3, Qwen2VLImageProcessorPil(**_PATCHES)),
    "Qwen3VLMoe": (_qwen3_experts, Qwen2VLImageProcessorPil(**_PATCHES)),
    "Llava": (_llava, LlavaImageProcessorPil(size={"shortest_edge": TILE}, crop_size=_SQUARE)),
    "Mistral3": (_mistral, PixtralImageProcessorPil(size={"longest_edge": 2 * TILE}, patch_size=8)),
    "InternVL": (_internvl, GotOcr2ImageProcessorPil(size=_SQUARE, max_patches=4)),
    "Gemma3": (_gemma, Gemma3ImageProcessorPil(size={"height": 2 * TILE, "width": 2 * TILE})),
}


def picture(seed: int, width: int = 60, height: int = 40) -> Image.Image:
    """Return a picture of random colours."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


@cache
def _processor(path: Path, kind: str) -> PictureProcessor:
    return PictureProcessor(path, f"{kind}ForConditionalGeneration")


def expanded(made: Made, image: Image.Image) -> str:
    """Return the text that stands for a picture in a prompt."""
    return _processor(made.path, made.kind).prepare(image).text


def prompt(made: Made, *parts: Part) -> tuple[list[int], list[Picture]]:
    """Return the token ids of texts and pictures, and the pictures' values."""
    tokens: list[int] = []
    prepared: list[PreparedPicture] = []
    for part in parts:
        if isinstance(part, str):
            tokens += made.tokenizer.encode(part, add_special_tokens=False).ids
            continue
        prepared.append(_processor(made.path, made.kind).prepare(part))
        tokens += made.tokenizer.encode(prepared[-1].text, add_special_tokens=False).ids
    placeholder = made.tokenizer.token_to_id(prepared[0].placeholder) if prepared else 0
    return tokens, placed_pictures(prepared, tokens, placeholder) if prepared else []


def judged(made: Made, tokens: list[int], images: list[Image.Image], num: int) -> tuple[list[int], list[float]]:
    """Return transformers' greedy tokens after the prompt, and their log-probabilities."""
    inputs: dict[str, Any] = {}
    if images:
        given = [images] if made.kind in ("SmolVLM", "Idefics3") else images
        got = _processor(made.path, made.kind).own(given, return_tensors="pt", **CALLS.get(made.kind, {}))
        inputs = {name: got[name] for name in INPUTS if name in got}
        if (name := TYPES.get(made.kind)) is not None:
            placeholder = made.model.config.image_token_id
            inputs[name] = torch.tensor([[int(token == placeholder) for token in tokens]])
    with torch.inference_mode():
        said = made.model.generate(
            input_ids=torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long), **inputs,
            max_new_tokens=num, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True,
            return_dict_in_generate=True,
        )  # fmt: skip
    return said.sequences[0, len(tokens) :].tolist(), [float(row_1V.log_softmax(-1).max()) for row_1V in said.logits]
