"""Modules whose import is deferred: executed once, by who reads from them or needs what they register."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramiform.runtime.processes.deferred_imports import DeferringFinder

TORCH = """
from ramiform.runtime.processes.deferred_imports import DeferredModule, defer_parts_of_torch
defer_parts_of_torch()
import sys, torch
print(isinstance(sys.modules["torch._meta_registrations"], DeferredModule))
print((torch.ones(2, 3) @ torch.ones(3, 2)).sum().item())
print(torch.export.export is not None, isinstance(torch.export, DeferredModule))
import torch._dynamo
print(isinstance(sys.modules["torch._meta_registrations"], DeferredModule))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose module `late` is deferred, and needed by `needy`."""
    folder = tmp_path / "deferring"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import late\nexecuted = []\n")
    (folder / "late.py").write_text("from deferring import executed\nexecuted.append('late')\nvalue = 5\n")
    (folder / "needy.py").write_text("from deferring import executed\nseen = list(executed)\n")
    monkeypatch.syspath_prepend(tmp_path)
    finder = DeferringFinder(("deferring.late",), ("deferring.needy",))
    sys.meta_path.insert(0, finder)
    yield folder
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.startswith("deferring")]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_deferred_module_is_executed_once_when_an_attribute_is_read() -> None:
    deferring = importlib.import_module("deferring")
    assert deferring.executed == []
    assert not hasattr(deferring.late, "__path__")
    assert deferring.executed == []
    assert (deferring.late.value, deferring.late.value) == (5, 5)
    assert deferring.executed == ["late"]


@pytest.mark.usefixtures("package")
def test_a_module_that_needs_a_deferred_one_finds_it_executed() -> None:
    assert importlib.import_module("deferring.needy").seen == ["late"]


@pytest.mark.exhaustive
def test_torch_computes_with_parts_deferred_and_its_compiler_gets_them_back() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", TORCH], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "12.0", "True", "False", "False"]
