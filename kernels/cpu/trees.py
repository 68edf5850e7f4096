"""Verifying trees of guesses. Its meaning is `reference.trees`.

Legend: O outputs of the step's rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import Ints, compiled


@compiled("void(int64[::1], int64[::1], int64[::1], boolean[::1])")
def walk_trees(sampled_O: Ints, guessed_O: Ints, parents_O: Ints, on_way_O: NDArray[np.bool_]) -> None:
    """Which outputs lie on the way that the samples take. Parents come before their children."""
    for output in range(len(sampled_O)):
        parent = parents_O[output]
        root = parent == output
        on_way_O[output] = root or (on_way_O[parent] and sampled_O[parent] == guessed_O[output])
