"""Which layers of a model a rank holds, as a value. Knows sizes; knows no tensors, processes or devices.

Pipeline parallelism (Huang et al. 2019, GPipe, section 2.2): neighbouring layers make a stage, and what a stage
computes of a token is what the next one begins with. The first stage has both ends of the model, the embedding and what
makes logits of the last layer's output: so rank 0, which decides, has all it decides by, and weights that the two ends
share are held once (docs/decisions/0012).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..models.config import ModelConfig
from ..models.size import ModelSize, model_size
from ..protocol.errors import RequestError

# Tokens that are worth a micro-batch of their own, by kind of device. Fewer take a stage as long as many do, since it
# reads its weights for them; then it is best to go through the stages once.
MIN_MICRO_BATCH_TOKENS = {"cpu": 16, "cuda": 256}

_LAYER = re.compile(r"(?:model\.layers|blk)\.(\d+)\.")  # in names of safetensors, and of GGUF


@dataclass(frozen=True, slots=True)
class Stage:
    index: int = 0
    size: int = 1  # stages

    @property
    def has_ends(self) -> bool:
        """Embedding, final norm and head."""
        return self.index == 0

    def layers(self, config: ModelConfig) -> range:
        """Those of the whole model's that are computed here."""
        counts = layer_counts(config, self.size)
        first = sum(counts[: self.index])
        return range(first, first + counts[self.index])

    def local(self, config: ModelConfig) -> ModelConfig:
        """The whole model's config with this stage's layers only."""
        layers = self.layers(config)
        own = slice(layers.start, layers.stop)
        experts = config.experts
        if experts is not None:
            experts = replace(experts, layers=experts.layers[own])
        return replace(config, num_layers=len(layers), windows=config.windows[own], experts=experts)

    def held(self, config: ModelConfig) -> ModelSize:
        """What of the whole model is here."""
        return model_size(self.local(config), has_ends=self.has_ends)

    def lacks(self, name: str, config: ModelConfig) -> bool:
        """Whether the tensor `name` of a checkpoint is another stage's, which will say whether it is a right one."""
        found = _LAYER.match(name)
        if found is None:
            return not self.has_ends
        index = int(found[1])
        return index < config.num_layers and index not in self.layers(config)


def stage_of(config: ModelConfig, *, index: int, size: int) -> Stage:
    """Raises RequestError, naming pp, when there are more stages than layers."""
    if size > config.num_layers:
        raise RequestError(
            f"pp {size} does not fit the model: it has {config.num_layers} layers, and every stage needs one",
            param="pp",
        )
    return Stage(index, size)


def layer_counts(config: ModelConfig, size: int) -> list[int]:
    """Of each stage, so that the most that one holds is the least: the first has the model's ends besides. What layers
    are left over when the others share theirs go to the earlier of them."""
    if size == 1:
        return [config.num_layers]
    whole, num_layers = model_size(config), config.num_layers
    layer = whole.linear / num_layers  # on average: a mixture's may differ

    def most(first: int) -> float:
        return max(whole.ends + first * layer, -(-(num_layers - first) // (size - 1)) * layer)

    first = min(range(num_layers - size + 1, 0, -1), key=most)
    each, more = divmod(num_layers - first, size - 1)
    return [first, *(each + (index < more) for index in range(size - 1))]


def num_micro_batches(num_tokens: int, size: int, *, least: int) -> int:
    """Into how many parts `size` stages cut a step of so many tokens: as many as there are stages, unless they had
    fewer than `least` tokens each."""
    return max(1, min(size, num_tokens // least))
