"""Defers the modules of torch that running a model never uses, so that a core imports torch sooner.

`import torch` registers thousands of shapes and decompositions for its compiler and exporter. A deferred module is
executed when an attribute of it is first read, or when a part of torch is imported that depends on its side effects.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_DEFERRED = ("torch._meta_registrations", "torch.export")  # shapes of operators on no device; the exporter
_NEED_THEM = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")  # torch.compile


class DeferredModule(ModuleType):
    """A module that is executed when an attribute is missing. Its own are set already: name, file, spec."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by those who list them, e.g. `inspect.getmodule`
            raise AttributeError(name)
        execute(self)
        return getattr(self, name)


def execute(module: ModuleType) -> None:
    """Execute a deferred module now; nothing happens to any other."""
    if isinstance(module, DeferredModule):
        assert module.__spec__ is not None
        loader = module.__spec__.loader
        assert isinstance(loader, _DeferringLoader)
        module.__class__ = ModuleType
        loader.inner.exec_module(module)


class _DeferringLoader(Loader):
    def __init__(self, inner: Loader) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return DeferredModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `execute` does it later."""


class DeferringFinder(MetaPathFinder):
    """Finds the modules to defer; executes them before a module is imported that needs them."""

    def __init__(self, deferred: Sequence[str], needed_by: Sequence[str]) -> None:
        self._deferred, self._needed_by = deferred, needed_by

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self._needed_by:
            for name in self._deferred:
                execute(import_module(name))
        if fullname not in self._deferred:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _DeferringLoader(spec.loader)
        return spec


def defer_parts_of_torch() -> None:
    """Defer them for this process. Call it before torch is imported."""
    sys.meta_path.insert(0, DeferringFinder(_DEFERRED, _NEED_THEM))
