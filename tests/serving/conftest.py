"""Official clients of the OpenAI API against the real runtime on the model that ships."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def model(client: OpenAI) -> str:
    return client.models.list().data[0].id
