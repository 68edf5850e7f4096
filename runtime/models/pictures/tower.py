"""The vision tower and projector of a checkpoint: transformers' own modules, with the checkpoint's tensors.

Legend: F frames of a picture, C colours, H W height and width, N features, E hidden size of the decoder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...protocol.pictures import Picture
from ...tokenizer.image_processors import PictureProcessor
from ..config import ModelConfig
from ..errors import CheckpointError
from ..stored.weights import weight_files


class PictureTower:
    """Computes the features of pictures, one at a time: so they do not depend on what else a step computes."""

    def __init__(self, path: Path, config: ModelConfig, *, device: torch.device, dtype: torch.dtype) -> None:
        """Load the tower of the checkpoint in directory `path`. Raises CheckpointError or TokenizerError."""
        from PIL import Image  # here, because these are optional packages
        from transformers import AutoConfig, AutoModel

        self._processor = PictureProcessor(path, config.architecture)
        whole = AutoConfig.from_pretrained(path, local_files_only=True)
        with torch.device("meta"):
            self._model = AutoModel.from_config(whole, dtype=dtype)
        deep = getattr(whole.vision_config, "deepstack_visual_indexes", None) or ()
        if len(deep) >= config.num_layers:
            raise CheckpointError(path, f"deepstack_visual_indexes {deep}: the model has {config.num_layers} layers")
        vision, *others = config.tower
        setattr(self._model, vision, type(getattr(self._model, vision))(whole.vision_config))
        for name in others:
            setattr(self._model, name, type(getattr(self._model, name))(whole))
        for name, _ in list(self._model.named_children()):
            if name not in config.tower:
                delattr(self._model, name)
        _fill(path, self._model, config.tower)
        for parameter in self._model.parameters():  # and no buffers: frequencies stay float32
            parameter.data = parameter.data.to(dtype)
        self._model.to(device).eval()
        self._features = _FEATURES[config.architecture]
        self._device, self._dtype = device, dtype
        tried = self._processor.prepare(Image.new("RGB", (64, 16)))
        found, self.width = self.features(tried.picture).shape
        if found != tried.num_features:
            raise CheckpointError(
                path, f"its settings give an image {tried.num_features} placeholders, its vision tower {found} features"
            )

    @torch.inference_mode()
    def features(self, picture: Picture) -> torch.Tensor:
        """Return the picture's features [N, E]."""
        pixels = torch.from_numpy(self._processor.values(picture)).to(self._device, self._dtype)
        return self._features(self._model, pixels, picture)


def _projected(model: Any, pixels_FCHW: torch.Tensor, picture: Picture) -> torch.Tensor:
    outputs = model.get_image_features(pixel_values=pixels_FCHW)
    return torch.cat([frame.flatten(0, -2) for frame in outputs.pooler_output])


def _of_size(model: Any, pixels_FCHW: torch.Tensor, picture: Picture) -> torch.Tensor:
    outputs = model.get_image_features(pixel_values=pixels_FCHW, image_sizes=[picture.shape[2:]])
    return torch.cat(list(outputs.pooler_output))


def _of_patches(model: Any, patches: torch.Tensor, picture: Picture) -> torch.Tensor:
    assert picture.grid is not None
    merged = model.visual.spatial_merge_size
    grid_13 = torch.tensor([[1, *(merged * size for size in picture.grid)]], device=patches.device)
    outputs = model.get_image_features(pixel_values=patches, image_grid_thw=grid_13)
    behind = [torch.cat(list(own)) for own in getattr(outputs, "deepstack_features", None) or ()]
    return torch.cat([torch.cat(list(outputs.pooler_output)), *behind], dim=-1)


def _connected(model: Any, pixels_FCHW: torch.Tensor, picture: Picture) -> torch.Tensor:
    # Idefics' own function leaves out a frame whose values are all zero, taking it for padding.
    states = model.vision_model(pixel_values=pixels_FCHW, return_dict=True).last_hidden_state
    features: torch.Tensor = model.connector(states)
    return features.flatten(0, 1)


_FEATURES: dict[str, Callable[[Any, torch.Tensor, Picture], torch.Tensor]] = {
    "Qwen2VLForConditionalGeneration": _of_patches,
    "Qwen2_5_VLForConditionalGeneration": _of_patches,
    "Qwen3VLForConditionalGeneration": _of_patches,
    "Qwen3VLMoeForConditionalGeneration": _of_patches,
    "Idefics3ForConditionalGeneration": _connected,
    "SmolVLMForConditionalGeneration": _connected,
    "Mistral3ForConditionalGeneration": _of_size,
    "Gemma3ForConditionalGeneration": _projected,
    "LlavaForConditionalGeneration": _projected,
    "InternVLForConditionalGeneration": _projected,
}


def _fill(path: Path, model: torch.nn.Module, parts: tuple[str, ...]) -> None:
    """Copy the tensors of the modules `parts` from the checkpoint. Raises CheckpointError when one is missing or of
    another shape."""
    own = re.compile(rf"(?:model\.)?((?:{'|'.join(parts)})\.)(vision_model\.)?(.*)")
    named = model.state_dict()
    found: dict[str, torch.Tensor] = {}
    for file in weight_files(path):
        try:
            with safe_open(file, framework="pt") as tensors:
                for stored in tensors.keys():  # noqa: SIM118  # safe_open is no mapping
                    if (match := own.fullmatch(stored)) is not None:
                        part, older, name = match.groups("")
                        whole = part + older + name
                        found[whole if whole in named else part + name] = tensors.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(file, f"corrupt or truncated: {error}") from None
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        raise CheckpointError(path, f"its vision tower is not of its class: {error}") from None
