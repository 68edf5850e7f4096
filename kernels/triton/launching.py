"""Launches of Triton kernels. Every launch goes through `launch`, so that it can be recorded and compiled ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch


class Launch(NamedTuple):
    """A launch that was recorded instead of made."""

    kernel: Any
    arguments: Mapping[str, Any]  # all of them, by name
    options: Mapping[str, int]

    @property
    def key(self) -> tuple[object, ...]:
        """Return what Triton compiles a kernel anew for: constants, dtypes, arguments that are None, options.

        Integers that are not specialised count by their type only, others by their value.
        """
        parts: list[object] = [self.kernel.__name__, *self.options.items()]
        for parameter in self.kernel.params:
            value = self.arguments[parameter.name]
            if isinstance(value, torch.Tensor):
                parts.append(value.dtype)
            elif isinstance(value, float) and not parameter.is_constexpr:
                parts.append(float)
            elif parameter.do_not_specialize and value is not None:
                parts.append(type(value))
            else:
                parts.append(value)
        return tuple(parts)

    def compile(self) -> None:
        """Compile the kernel for the current device, so that the launch that was recorded finds it compiled."""
        self.kernel.run(grid=None, warmup=True, **self.arguments, **self.options)  # options in the order of `launch`


_recorded: list[Launch] | None = None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int, num_stages: int = 3, **kwargs: Any) -> None:
    """Launch `kernel` on `grid`. Inside `recorded` nothing runs.

    Products and sums may be fused. That is stated, because Triton warns of its default, which changes.
    """
    options = {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}
    if _recorded is None:
        kernel[grid](*args, **kwargs, **options)
        return
    arguments = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    assert set(arguments) == set(kernel.arg_names), set(kernel.arg_names) ^ set(arguments)
    _recorded.append(Launch(kernel, arguments, options))


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record the launches of the calls inside instead of making them; their outputs are undefined."""
    global _recorded
    before, launches = _recorded, list[Launch]()
    _recorded = launches
    try:
        yield launches
    finally:
        _recorded = before
