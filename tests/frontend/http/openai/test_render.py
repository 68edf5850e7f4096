"""The routes `.../render` return what the answer's own request has: its tokens and parameters."""

from __future__ import annotations

from typing import Any

from ramiform.tests.frontend.harness import run, says
from ramiform.tests.frontend.served import check_error, served

SETTINGS: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "seed": 3, "stop": ["q"], "max_tokens": 5}


def test_a_rendered_request_is_the_one_that_is_sent() -> None:
    async def main() -> None:
        async with served(says(" fine.")) as (built, client):
            chat = {"messages": [{"role": "user", "content": "Hi"}], **SETTINGS}
            rendered = [(await client.post("/v1/chat/completions/render", json=chat)).json()]
            rendered += (await client.post("/v1/completions/render", json={"prompt": ["a", "b"], **SETTINGS})).json()
            assert not built.core.requests
            counted = await client.post("/v1/chat/completions/input_tokens", json=chat)
            assert counted.json()["input_tokens"] == len(rendered[0]["token_ids"])
            await client.post("/v1/chat/completions", json=chat)
            await client.post("/v1/completions", json={"prompt": ["a", "b"], **SETTINGS})
            assert [each["token_ids"] for each in rendered] == [sent.tokens for sent in built.core.requests]
            for each in rendered:
                params = each["sampling_params"]
                assert {name: params[name] for name in SETTINGS} == SETTINGS
            check_error(await client.post("/v1/completions/render", json={"prompt": "a", "n": 0}), 400, "n")

    run(main())
