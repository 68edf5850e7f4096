"""Pipeline stages: the layers of a rank, and how steps are cut into micro-batches.

Neighbouring layers make a stage; a stage's output is the next one's input (Huang et al. 2019, GPipe, section 2.2). The
first stage also has embedding, final norm and head: rank 0, which samples, has all it needs, and tied weights are held
once (docs/inside/decisions/0012).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ...protocol.errors import RequestError
from ..config import ModelConfig
from ..size import ModelSize, model_size

# Least tokens of a micro-batch, by kind of device. Fewer take a stage as long as many, since it reads its weights for
# them; then one pass through the stages is best.
MIN_MICRO_BATCH_TOKENS = {"cpu": 16, "cuda": 256}

_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")  # in names of safetensors and of GGUF


def with_layers(config: ModelConfig, layers: range) -> ModelConfig:
    """Return a model's config with some neighbouring layers only."""
    own = slice(layers.start, layers.stop)
    experts = config.experts
    if experts is not None:
        experts = replace(experts, layers=experts.layers[own])
    return replace(
        config,
        num_layers=len(layers),
        windows=config.windows[own],
        second_rope_layers=config.second_rope_layers[own],
        experts=experts,
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of `size`."""

    index: int = 0
    size: int = 1  # stages

    @property
    def has_ends(self) -> bool:
        """True when this stage has embedding, final norm and head."""
        return self.index == 0

    def layers(self, config: ModelConfig) -> range:
        """Return the range of the model's layers in this stage."""
        counts = layer_counts(config, self.size)
        first = sum(counts[: self.index])
        return range(first, first + counts[self.index])

    def local(self, config: ModelConfig) -> ModelConfig:
        """Return the model's config with this stage's layers only."""
        return with_layers(config, self.layers(config))

    def size_of(self, config: ModelConfig) -> ModelSize:
        """Count the parameters of this stage."""
        return model_size(self.local(config), has_ends=self.has_ends)

    def is_foreign(self, name: str, config: ModelConfig) -> bool:
        """Return True when the checkpoint tensor `name` belongs to another stage, which checks its name."""
        found = _LAYER.match(name)
        if found is None:
            return not self.has_ends
        index = int(found[1])
        return index < config.num_layers and index not in self.layers(config)


def stage_of(config: ModelConfig, *, index: int, size: int) -> Stage:
    """Return stage `index` of `size`. Raises RequestError, naming pp, when there are more stages than layers."""
    if size > config.num_layers:
        raise RequestError(
            f"pp {size} does not fit the model: it has {config.num_layers} layers, and every stage needs one",
            param="pp",
        )
    if size > 1 and config.recurrent is not None:
        raise RequestError(f"pp {size} does not fit the model: its recurrent layers are not divided", param="pp")
    return Stage(index, size)


def layer_counts(config: ModelConfig, size: int) -> list[int]:
    """Return the number of layers of each stage, so that the largest stage is as small as possible.

    The first stage has the model's ends besides. Layers that do not divide evenly go to the earlier of the other
    stages.
    """
    if size == 1:
        return [config.num_layers]
    whole, num_layers = model_size(config), config.num_layers
    layer = whole.linear / num_layers  # on average: layers with a mixture differ from dense ones

    def most(first: int) -> float:
        return max(whole.ends + first * layer, -(-(num_layers - first) // (size - 1)) * layer)

    first = min(range(num_layers - size + 1, 0, -1), key=most)
    each, more = divmod(num_layers - first, size - 1)
    return [first, *(each + (index < more) for index in range(size - 1))]


def num_micro_batches(num_tokens: int, size: int, *, least: int) -> int:
    """Return the number of parts that `size` stages cut a step into: `size`, unless parts had fewer than `least`
    tokens."""
    return max(1, min(size, num_tokens // least))
