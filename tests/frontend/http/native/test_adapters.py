"""Routes of LoRA adapters on a frontend without a model: who may ask, and what is refused by name."""

from __future__ import annotations

import pytest

from ...harness import run
from ...served import served

ROUTES = ("/v1/load_lora_adapter", "/load_lora_adapter", "/v1/unload_lora_adapter", "/unload_lora_adapter")


def body_of(route: str) -> dict[str, str]:
    return {"lora_name": "sql"} | ({} if "unload" in route else {"lora_path": "/etc"})


@pytest.mark.slow
def test_a_path_needs_an_admin_key() -> None:
    async def main() -> None:
        async with served(api_key="one,two") as (_, client):
            for route in ROUTES:
                headers = {"authorization": "Bearer one"}
                assert (await client.post(route, json=body_of(route), headers=headers)).status_code == 403
                assert (await client.post(route, json=body_of(route))).status_code == 401

    run(main())


@pytest.mark.slow
def test_wrong_bodies_are_refused_by_the_field() -> None:
    async def main() -> None:
        async with served() as (_, client):
            wrong = {"lora_name": "sql", "lora_path": "/a", "load_inplace": True}
            answer = await client.post("/v1/load_lora_adapter", json=wrong)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == "load_inplace"
            answer = await client.post("/v1/load_lora_adapter", json={"lora_name": "sql"})
            assert answer.json()["error"]["param"] == "lora_path"

    run(main())
