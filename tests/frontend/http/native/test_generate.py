"""The native API over a real port."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.errors import RamiformError, RequestError, RuntimeFailed
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.tests.frontend.fake_core import BUSY, logprob
from ramiform.tests.frontend.harness import run, says, shipped_tokenizer
from ramiform.tests.frontend.served import check_error, events, served

TOKENIZER = shipped_tokenizer()
EOS = TOKENIZER.eos_ids[0]
BOS = [TOKENIZER.bos_id] if TOKENIZER.adds_bos and TOKENIZER.bos_id is not None else []
FINE = TOKENIZER.encode(" fine.", continues=True)


@pytest.mark.slow
def test_a_prompt_is_continued() -> None:
    async def main() -> None:
        async with served() as (built, client):
            body = {"text": "How are you?", "rid": "mine", "sampling_params": {"temperature": 0, "max_new_tokens": 50}}
            answer = (await client.post("/generate", json=body)).json()
            prompt = BOS + TOKENIZER.encode("How are you?")
            latency = answer["meta_info"].pop("e2e_latency")
            assert latency > 0
            assert answer == {
                "text": " fine.",
                "output_ids": [*FINE, EOS],
                "meta_info": {
                    "id": "mine",
                    "finish_reason": {"type": "stop", "matched": EOS},
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(FINE) + 1,
                    "cached_tokens": len(prompt) // 2,
                    "weight_version": "default",
                    "num_retractions": 0,
                    "spec_verify_ct": 0,
                    "spec_accept_length": 0.0,
                    "spec_accept_histogram": [],
                    "spec_draft_token_num": 0,
                    "spec_accept_token_num": 0,
                },
            }
            assert built.core.requests[0].tokens == prompt
            ids = {"input_ids": prompt, "sampling_params": body["sampling_params"]}
            assert (await client.post("/generate", json=ids)).json()["text"] == " fine."
            assert built.core.requests[1].tokens == prompt

    run(main())


@pytest.mark.slow
def test_parameters_arrive_as_they_are_meant() -> None:
    async def main() -> None:
        async with served() as (built, client):
            sampling = {
                "max_new_tokens": 7,
                "top_k": -1,
                "stop": "x",
                "stop_token_ids": [5],
                "logit_bias": {"17": -3},
                "sampling_seed": 11,
                "json_schema": {"z": 1, "a": 2},
            }
            body = {
                "text": "Q",
                "sampling_params": sampling,
                "return_logprob": True,
                "logprob_start_len": -1,
                "top_logprobs_num": 2,
                "priority": 3,
                "extra_key": "tenant",
                "image_data": None,
                "return_hidden_states": False,
                "return_routed_experts": True,
                "routed_experts_start_len": 1,
            }
            assert (await client.post("/generate", json=body)).status_code == 200
            [request] = built.core.requests
            params = request.sampling
            assert (params.max_new_tokens, params.top_k, params.stop, params.stop_token_ids) == (7, None, ("x",), (5,))
            assert (params.logit_bias, params.seed) == ({17: -3.0}, 11)
            assert params.constraint == Constraint("json_schema", '{"z": 1, "a": 2}')
            assert request.logprobs == LogprobParams(num_top=2)
            assert (request.priority, request.namespace, request.routed_from) == (3, "tenant", 1)

    run(main())


@pytest.mark.slow
def test_logprobs_are_tuples_of_value_id_and_text() -> None:
    async def main() -> None:
        async with served() as (_, client):
            body = {
                "input_ids": [3, 4, 5],
                "sampling_params": {"max_new_tokens": 2},
                "return_logprob": True,
                "logprob_start_len": 0,
                "return_text_in_logprobs": True,
            }
            meta = (await client.post("/generate", json=body)).json()["meta_info"]
            texts = [TOKENIZER.decode([token], skip_special_tokens=False) for token in (3, 4, 5, *FINE[:2])]
            assert meta["input_token_logprobs"] == [
                [None, 3, texts[0]],
                [logprob([3], 4), 4, texts[1]],
                [logprob([3, 4], 5), 5, texts[2]],
            ]
            assert meta["output_token_logprobs"] == [
                [logprob([3, 4, 5], FINE[0]), FINE[0], texts[3]],
                [logprob([3, 4, 5, FINE[0]], FINE[1]), FINE[1], texts[4]],
            ]

    run(main())


@pytest.mark.slow
def test_batches_and_samples_come_as_lists_in_order() -> None:
    def script(request: Generate) -> list[int]:
        return TOKENIZER.encode(f" {request.tokens[-1]}/{request.sampling.seed}", continues=True)

    async def main() -> None:
        async with served(script) as (_, client):
            params = [{"sampling_seed": 10, "n": 2}, {"sampling_seed": 20}]
            body = {"input_ids": [[7], [8]], "sampling_params": params, "rid": ["a", "b"]}
            answers = (await client.post("/generate", json=body)).json()
            assert [answer["text"] for answer in answers] == [" 7/10", " 7/11", " 8/20"]
            assert [answer["meta_info"]["id"] for answer in answers] == ["a-0", "a-1", "b"]
            one = (await client.post("/generate", json={"text": ["x"]})).json()
            assert isinstance(one, list)
            streamed = events((await client.post("/generate", json={**body, "stream": True})).text)
            last = {value["index"]: value for value in streamed}
            assert [last[index]["text"] for index in range(3)] == [" 7/10", " 7/11", " 8/20"]

    run(main())


@pytest.mark.slow
def test_a_stream_repeats_the_text_so_far_and_ends_with_the_whole_answer() -> None:
    async def main() -> None:
        text = " a 🦊, then STOP here"
        async with served(says(text)) as (_, client):
            body = {"text": "Q", "sampling_params": {"stop": "STOP", "max_new_tokens": 99}, "return_logprob": True}
            whole = (await client.post("/generate", json=body)).json()
            response = await client.post("/generate", json={**body, "stream": True})
            assert response.headers["content-type"].startswith("text/event-stream")
            values = events(response.text)
            for earlier, later in pairwise(values):
                assert later["text"].startswith(earlier["text"])
                assert later["output_ids"][: len(earlier["output_ids"])] == earlier["output_ids"]
                assert earlier["meta_info"]["finish_reason"] is None
            last = values[-1]
            assert last["text"] == whole["text"] == " a 🦊, then "
            assert last["output_ids"] == whole["output_ids"]
            assert last["meta_info"]["finish_reason"] == {"type": "stop", "matched": "STOP"}
            assert last["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"]

    run(main())


WRONG: list[tuple[Any, str | None, str]] = [
    ({}, "text", "text or input_ids"),
    ({"text": "a", "input_ids": [1]}, "input_ids", "text or input_ids"),
    ({"text": 5}, "text", "string"),
    ({"text": []}, "text", "1 to"),
    ({"input_ids": []}, None, ""),
    ({"input_ids": [1 << 70]}, "input_ids[0]", "less than"),
    ({"input_ids": [-1]}, "input_ids[0]", "greater than"),
    ({"text": "a", "bogus": 1}, "bogus", "unknown parameter bogus"),
    ({"text": "a", "return_logprobs": True}, "return_logprobs", "did you mean 'return_logprob'?"),
    ({"text": "a", "sampling_params": {"temprature": 1}}, "sampling_params.temprature", "did you mean 'temperature'?"),
    ({"text": "a", "sampling_params": {"bogus": 1}}, "sampling_params.bogus", "sampling_params.bogus"),
    (
        {"text": ["a", "b"], "sampling_params": [{}, {"bogus": 1}]},
        "sampling_params[1].bogus",
        "sampling_params[1].bogus",
    ),
    ({"text": "a", "sampling_params": {"stop_regex": "x*"}}, "stop_regex", "'x*'"),
    ({"text": "a", "sampling_params": {"stop_regex": ["y", "a(b"]}}, "stop_regex", "position 1"),
    ({"text": "a", "sampling_params": {"stop_regex": 5}}, "sampling_params.stop_regex", "string"),
    (
        {"text": "a", "sampling_params": {"temperature": "hot"}},
        "sampling_params.temperature",
        "sampling_params.temperature",
    ),
    ({"text": "a", "sampling_params": {"temperature": -1}}, "temperature", "-1"),
    ({"text": "a", "sampling_params": {"top_k": 0}}, "top_k", "0"),
    ({"text": "a", "sampling_params": {"n": 0}}, "n", "0"),
    ({"text": "a", "sampling_params": {"n": 1 << 40}}, "n", "n must be"),
    ({"text": "a", "sampling_params": {"sampling_seed": 1 << 64}}, "seed", "seed"),
    ({"text": "a", "sampling_params": {"logit_bias": {"x": 1}}}, "logit_bias", "'x'"),
    ({"text": "a", "sampling_params": {"regex": "a", "json_schema": "{}"}}, "json_schema", "exclude"),
    ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params", "1 entries for 2"),
    ({"text": "a", "return_logprob": True, "logprob_start_len": 99}, "logprob_start_len", "99"),
    ({"text": "a", "return_logprob": True, "top_logprobs_num": 65}, "top_logprobs", "65"),
    ({"input_ids": ["a"] * 300_000}, "input_ids[0]", "integer"),
    ({"text": "a", "token_ids_logprob": ["x"]}, "token_ids_logprob[0]", "integer"),
    ({"text": "a", "return_logprob": True, "token_ids_logprob": [1] * 1025}, "token_ids_logprob", "1025"),
    ({"text": ["a", "b"], "token_ids_logprob": [[1]]}, "token_ids_logprob", "1 entries for 2"),
    ([1, 2], None, "body"),
    ("text", None, "body"),
    ({"text": [1] * 300_000}, "text[0]", "string"),
    ({"text": "a"} | {f"bogus{index}": 1 for index in range(3000)}, "bogus0", "unknown parameter"),
    ({"text": ["a"] * 17, "sampling_params": {"n": 256}}, "n", "4096 outputs in all"),
    ({"text": "\ud800"}, "text", "text"),
    ({"text": "a", "rid": "\ud800"}, "rid", "Unicode"),
    ({"text": "a", "extra_key": "\ud800"}, "extra_key", "Unicode"),
    ({"text": "a", "sampling_params": {"stop": ["b", "\ud800"]}}, "sampling_params.stop[1]", "Unicode"),
    ({"text": "a", "\ud800": 1}, None, ""),
    ({"text": "a", "sampling_params": {"json_schema": {"const": "\ud800"}}}, "json_schema", "json_schema"),
    ({"text": "a", "sampling_params": {"temperature": float("nan")}}, "temperature", "nan"),
]


@pytest.mark.exhaustive
def test_a_wrong_body_is_a_400_that_names_the_parameter() -> None:
    def script(request: Generate) -> list[int] | RamiformError:
        return FINE if request.tokens else RequestError("the prompt is empty")

    async def main() -> None:
        async with served(script) as (_, client):
            for body, param, word in WRONG:
                for stream in (False, True):
                    sent = {**body, "stream": stream} if isinstance(body, dict) else body
                    headers = {"content-type": "application/json"}
                    response = await client.post("/generate", content=json.dumps(sent), headers=headers)
                    check_error(response, 400, param, word)

    run(main())


@pytest.mark.slow
def test_text_that_is_no_json_is_refused_with_its_place() -> None:
    async def main() -> None:
        async with served() as (_, client):
            for filling in ("", "a" * 300_000):  # a small body, and one that a thread reads
                content = '{"text": "a' + filling + '",\n "stream" true}'
                response = await client.post("/generate", content=content, headers={"content-type": "application/json"})
                check_error(response, 400, None, "(line 2, column 11)")

    run(main())


@pytest.mark.slow
def test_no_bytes_make_a_server_error() -> None:
    loop = asyncio.new_event_loop()
    context = served()
    _, client = loop.run_until_complete(context.__aenter__())
    some_body = json.dumps({"text": "a", "sampling_params": {"stop": ["b"], "temperature": 0.5}}).encode()
    mutated = st.builds(
        lambda at, byte: some_body[:at] + bytes([byte]) + some_body[at + 1 :],
        st.integers(0, len(some_body) - 1),
        st.integers(0, 255),
    )
    deep = st.sampled_from([b"[" * 100_000, b'{"text":' * 10_000, b"1" * 5000, b"-", b"\xff\xfe", b'{"text": 1e999}'])

    @settings(max_examples=60, deadline=None)
    @given(st.sampled_from(["/generate", "/tokenize", "/abort_request"]), st.binary(max_size=30) | mutated | deep)
    def post(path: str, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        response = loop.run_until_complete(client.post(path, content=body, headers=headers))
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]

    try:
        post()
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status"), [(RequestError("too long", param="prompt"), 400), (BUSY, 429), (RuntimeFailed("dead"), 503)]
)
def test_an_error_of_the_core_has_its_status(error: RamiformError, status: int) -> None:
    async def main() -> None:
        async with served(lambda request: error) as (_, client):
            for stream in (False, True):
                response = await client.post("/generate", json={"text": "a", "stream": stream})
                check_error(response, status, "text" if status == 400 else None, str(error))
                assert ("retry-after" in response.headers) == (status in (429, 503))

    run(main())


@pytest.mark.slow
def test_an_error_on_the_way_ends_the_stream_with_an_event() -> None:
    async def main() -> None:
        async with served(lambda request: FINE if request.sampling.seed == 1 else None) as (built, client):
            body = {"text": "a", "stream": True, "sampling_params": {"sampling_seed": 1, "n": 2}}

            async def die() -> None:
                await built.core.until(lambda: len(built.core.requests) == 2)
                built.core.fail(RuntimeFailed("the core is gone"))

            response, _ = await asyncio.gather(client.post("/generate", json=body), die())
            *_, last = events(response.text)
            assert last["error"]["message"] == "the core is gone"
            check_error(await client.get("/health"), 503, None, "the core is gone")

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_has_its_request_aborted(stream: bool) -> None:
    async def main() -> None:
        async with served(lambda request: FINE if stream and request.sampling.seed == 5 else None) as (built, client):
            body = {"text": "a", "stream": stream, "sampling_params": {"sampling_seed": 5, "n": 2}}

            async def ask() -> None:
                async with client.stream("POST", "/generate", json=body) as response:
                    async for _ in response.aiter_bytes():
                        pass

            asking = asyncio.create_task(ask())
            await built.core.until(lambda: len(built.core.requests) == 2)
            asking.cancel()
            waiting = built.core.requests[1].rid
            await built.core.until(lambda: waiting in built.core.aborted)

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("body", [{"rid": "mine"}, {"abort_all": True}])
def test_an_aborted_request_answers_with_what_it_has(body: dict[str, Any]) -> None:
    async def main() -> None:
        async with served(lambda request: None) as (built, client):
            asking = asyncio.create_task(client.post("/generate", json={"text": "a", "rid": "mine"}))
            await built.core.until(lambda: len(built.core.requests) == 1)
            assert (await client.post("/abort_request", json={"rid": "another"})).status_code == 200
            assert (await client.post("/abort_request", json=body)).status_code == 200
            answer = (await asking).json()
            assert answer["meta_info"]["finish_reason"]["type"] == "abort"
            assert len(built.core.aborted) == 1

    run(main())
