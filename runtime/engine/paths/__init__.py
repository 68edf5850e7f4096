"""The paths by which an engine computes steps, in the order in which it asks them."""

from __future__ import annotations

from collections.abc import Callable

from .compiled import CompiledStep
from .general import General
from .graphs import GraphReplay
from .path import NO_FORWARD, NOTHING_SAMPLED, EngineParts, Forward, Path, Sampled


def _kept_arrays(parts: EngineParts) -> Path | None:
    if parts.model.compiled_head is None:
        return None
    from .kept_arrays import KeptArrays  # here, because it imports numba

    return KeptArrays.of(parts)


# Each makes a path for a model and its memory, or returns None where it cannot compute them.
PATHS: tuple[Callable[[EngineParts], Path | None], ...] = (
    GraphReplay.of,
    _kept_arrays,
    CompiledStep.of,
    General.of,
)


def paths_of(parts: EngineParts) -> list[Path]:
    """Return the paths of an engine; the last one meets every need, and alone records the experts of tokens."""
    made = (make(parts) for make in (PATHS if parts.pool.routes is None else PATHS[-1:]))
    return [path for path in made if path is not None]


__all__ = ["NOTHING_SAMPLED", "NO_FORWARD", "PATHS", "EngineParts", "Forward", "Path", "Sampled", "paths_of"]
