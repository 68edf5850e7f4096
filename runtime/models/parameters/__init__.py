"""A decoder's tensors: their allocation, and the destination of each checkpoint tensor.

Queries, keys and values are one product, gate and up another. `checkpoint_destinations` is at once the list of tensors
that a checkpoint must hold, their shapes, and where each is copied.

Legend: V vocabulary, E hidden size, I intermediate size, H query heads, K key/value heads, D head size.
"""

from .allocate import allocate_parameters
from .destinations import checkpoint_destinations, num_parameters
from .values import BlockNorms, DecoderParameters, LayerParameters

__all__ = [
    "BlockNorms",
    "DecoderParameters",
    "LayerParameters",
    "allocate_parameters",
    "checkpoint_destinations",
    "num_parameters",
]
