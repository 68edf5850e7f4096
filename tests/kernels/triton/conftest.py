"""Without a GPU the kernels run in Triton's interpreter, which must be chosen before they are imported."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

pytest.importorskip("triton", reason="the extra 'gpu' is not installed")

if not torch.cuda.is_available():
    from .interpreter_dtypes import install

    install()


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
