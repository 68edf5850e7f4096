"""Images in requests of every API, and their bounds. Judge: transformers' greedy tokens."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from ramiform import Engine
from ramiform.runtime.processes.launch import Runtime
from ramiform.runtime.protocol.errors import RequestError
from ramiform.tests.operations.scrape import scrape
from ramiform.tests.serving.test_client_libraries import python as python
from ramiform.tests.serving.test_client_libraries import run as run_client
from ramiform.tests.serving.test_node_client import run_suite

from .checkpoint import Made, judged, picture
from .served import SETTINGS, base64_of, make_chat_checkpoint, png, serve, url_of

A, B = picture(1), picture(2, 70, 30)
NUM_NEW = 6
LIMITS = {"limit_mm_per_prompt": "image=3", "max_image_bytes": 20_000, "max_image_pixels": 10_000}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_chat_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def server(made: Made) -> Iterator[Runtime]:
    with serve(made, api_key="one,two", **LIMITS) as runtime:
        yield runtime


def post(server: Runtime, route: str, body: dict[str, Any], key: str = "one") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}{route}", json=body, headers=headers, timeout=120)


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def chat(server: Runtime, *parts: str | Image.Image, key: str = "one", **fields: Any) -> dict[str, Any]:
    """Ask a question in a chat and return the answer."""
    content = [text_part(part) if isinstance(part, str) else image_part(url_of(part)) for part in parts]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": NUM_NEW,
            "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    answer = post(server, CHAT, body | fields, key)
    assert answer.status_code == 200, answer.text
    value: dict[str, Any] = answer.json()
    return value


def refusal(server: Runtime, *parts: dict[str, Any]) -> tuple[str, str]:
    """Return the parameter and the message of the error for a message."""
    answer = post(server, CHAT, {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 2})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def test_an_answer_about_images_has_the_judges_tokens(server: Runtime, made: Made) -> None:
    for parts in ([A, "What is it?"], ["First", A, "then", B, "and", A, "Which differs?"]):
        answer = chat(server, *parts)
        ids = answer["prompt_token_ids"]
        expected, _ = judged(made, ids, [part for part in parts if not isinstance(part, str)], NUM_NEW)
        assert answer["choices"][0]["token_ids"] == expected
        placeholder = made.tokenizer.token_to_id("<image>")
        assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == ids.count(placeholder)


def test_a_second_question_about_an_image_reuses_it_for_its_own_key_only(server: Runtime, made: Made) -> None:
    image = picture(11)
    first = chat(server, image, "What is it?")
    end = max(i for i, token in enumerate(first["prompt_token_ids"]) if token == made.tokenizer.token_to_id("<image>"))
    again = chat(server, image, "How large?")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > end
    other_key = chat(server, image, "How large?", key="two")
    assert other_key["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    other = chat(server, picture(12), "How large?")
    assert other["prompt_token_ids"] == again["prompt_token_ids"]
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < end
    assert other["choices"][0]["token_ids"] != again["choices"][0]["token_ids"]


def test_questions_at_once_cost_one_pass_of_the_tower_and_another_text_reuses_its_features(server: Runtime) -> None:
    image, questions = picture(13), ["What is it?", "How large?", "Where?", "Why?"]
    with httpx.Client(base_url=str(server.url), headers={"Authorization": "Bearer one"}, timeout=120) as client:
        before = scrape(client)
        with ThreadPoolExecutor() as threads:
            [*threads.map(lambda question: chat(server, image, question), questions)]
        counts = scrape(client).since(before)
        assert (counts("ramiform_tower_seconds_count"), counts("ramiform_reused_images_total")) == (1, 0)
        chat(server, "Behind another text: ", image)
        counts = scrape(client).since(before)
        assert (counts("ramiform_tower_seconds_count"), counts("ramiform_reused_images_total")) == (1, 1)


def test_a_record_of_a_request_has_a_block_for_each_image(server: Runtime) -> None:
    answer = chat(server, "First", A, "then", B, "and", A, "which?")
    with httpx.Client(base_url=str(server.url), headers={"Authorization": "Bearer one"}) as client:
        newest = client.get("/v1/ramiform/programs").json()["programs"][0]["id"]
        [state] = client.get(f"/v1/ramiform/programs/{newest}").json()["states"]
    *prompt, _ = state["events"]
    texts, images = prompt[::2], prompt[1::2]
    assert [text["text"].split(">")[-1] for text in texts[1:]] == ["then", "and", "which?\nAssistant: "]
    assert all(text["image"] is None and "<image>" not in text["text"] for text in texts)
    first, second, third = (image["image"]["digest"] for image in images)
    assert first == third != second
    # With what the processor writes between the parts of an image.
    num = answer["usage"]["prompt_tokens_details"]["image_tokens"]
    assert num <= sum(int(re.fullmatch(r"image of (\d+) tokens", image["label"])[1]) for image in images)  # type: ignore[index]


def test_every_api_takes_images(server: Runtime) -> None:
    """Each API answers the same image and question with the same text."""
    expected = chat(server, A, "What is it?")["choices"][0]["message"]["content"]
    options = {"temperature": 0, "ignore_eos": True}
    parts = [{"type": "input_image", "image_url": url_of(A)}, {"type": "input_text", "text": "What is it?"}]
    answer = post(server, "/v1/responses", {"input": [{"role": "user", "content": parts}],
                                            "max_output_tokens": NUM_NEW, **options})  # fmt: skip
    assert answer.json()["output"][0]["content"][0]["text"] == expected
    assert answer.json()["usage"]["input_tokens_details"]["image_tokens"] > 0
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(A)}
    blocks = [{"type": "image", "source": source}, text_part("What is it?")]
    body = {"max_tokens": NUM_NEW, "temperature": 0, "messages": [{"role": "user", "content": blocks}]}
    assert expected.startswith(post(server, "/v1/messages", body).json()["content"][0]["text"])
    asked = {"stream": False, "options": {"num_predict": NUM_NEW, "temperature": 0}}
    message = {"role": "user", "content": "What is it?", "images": [base64_of(A)]}
    told = post(server, "/api/chat", {"messages": [message], **asked}).json()
    assert expected.startswith(told["message"]["content"])
    told = post(server, "/api/generate", {"prompt": "What is it?", "images": [base64_of(A)], **asked}).json()
    assert expected.startswith(told["response"])
    sampling = {"temperature": 0, "max_new_tokens": NUM_NEW, "ignore_eos": True}
    prompt = "User: <image>What is it?\nAssistant: "
    told = post(server, "/generate", {"text": prompt, "image_data": url_of(A), "sampling_params": sampling}).json()
    assert told["text"] == expected
    both = {"text": [prompt, prompt], "image_data": [base64_of(A), [url_of(B)]], "sampling_params": sampling}
    one, two = post(server, "/generate", both).json()
    assert one["text"] == expected != two["text"]
    assert one["meta_info"]["image_tokens"] > 0


def test_a_prompt_of_token_ids_has_images(server: Runtime) -> None:
    told = chat(server, A, "What is it?")
    ids, expected = told["prompt_token_ids"], told["choices"][0]["token_ids"]
    asked = {"prompt": [*ids, *expected[:2]], "continued_tokens": 2, "image_data": [url_of(A)], "temperature": 0,
             "max_tokens": NUM_NEW - 2, "ignore_eos": True, "return_token_ids": True}  # fmt: skip
    [choice] = post(server, "/v1/completions", asked).json()["choices"]
    assert choice["token_ids"] == expected[2:]
    assert choice["prompt_image_places"] == told["prompt_image_places"]
    sampling = {"temperature": 0, "max_new_tokens": NUM_NEW, "ignore_eos": True}
    body = {"input_ids": ids, "image_data": url_of(A), "sampling_params": sampling}
    assert post(server, "/generate", body).json()["output_ids"] == expected
    for change, words in (
        ({"prompt": "<image>", "continued_tokens": 0}, "one prompt of token ids"),
        ({"prompt": [ids, ids], "continued_tokens": 0}, "one prompt of token ids"),
        ({"image_data": [url_of(A)] * 2}, "its images have"),
        ({"image_data": ["%"]}, "image_data[0]"),
    ):
        answer = post(server, "/v1/completions", asked | change)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True), answer.text


@pytest.mark.exhaustive
def test_the_clients_of_each_api_send_images(server: Runtime, python: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(png(A))
    expected = chat(server, A, "What is it?")
    text, usage = expected["choices"][0]["message"]["content"], expected["usage"]
    got = json.loads(run_client("send_images.py", python, str(server.url), "one", str(file)).splitlines()[-1])
    assert got["chat"] == got["response"] == text
    assert text.startswith(got["message"])
    assert text.startswith(got["ollama"])
    assert got["prompt_tokens"] == usage["prompt_tokens"]
    assert got["image_tokens"] == usage["prompt_tokens_details"]["image_tokens"] > 0
    assert got["param"] == "messages[0].content[0]"


@pytest.mark.exhaustive
def test_the_node_clients_send_images(server: Runtime, node: Path, tmp_path: Path) -> None:
    (file := tmp_path / "a.png").write_bytes(png(A))
    answer = chat(server, A, "What is it?")
    expected = {
        "text": answer["choices"][0]["message"]["content"],
        "image_tokens": answer["usage"]["prompt_tokens_details"]["image_tokens"],
        "num_new": NUM_NEW,
    }
    run_suite(
        "images",
        node,
        RAMIFORM_URL=str(server.url),
        RAMIFORM_KEY="one",
        RAMIFORM_IMAGE=str(file),
        RAMIFORM_EXPECTED=json.dumps(expected),
    )


def test_results_of_tools_have_images(server: Runtime, made: Made) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(B)}
    tools = [{"name": "look", "input_schema": {"type": "object", "properties": {}}}]
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                      "content": [text_part("Seen:"), {"type": "image", "source": source}]}]},
    ]  # fmt: skip
    answer = post(server, "/v1/messages", {"max_tokens": 2, "messages": messages, "tools": tools})
    assert answer.status_code == 200, answer.text
    count = post(server, "/v1/messages/count_tokens", {"messages": messages, "tools": tools}).json()["input_tokens"]
    usage = answer.json()["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert count > chat(server, B)["usage"]["prompt_tokens_details"]["image_tokens"]


def test_the_next_turn_has_the_ids_of_the_answer_before(server: Runtime, made: Made) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": [image_part(url_of(A)), text_part("What is it?")]}]
    first = chat(server, messages=messages)
    said = first["choices"][0]
    messages += [{"role": "assistant", "content": said["message"]["content"]}, {"role": "user", "content": "Surely?"}]
    second = chat(server, messages=messages)
    known = len(first["prompt_token_ids"])
    assert second["usage"]["prompt_tokens_details"]["remembered_tokens"] > 0
    assert second["prompt_token_ids"][:known] == first["prompt_token_ids"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= known
    assert second["choices"][0]["token_ids"] == judged(made, second["prompt_token_ids"], [A], NUM_NEW)[0]


def test_an_answer_in_the_form_of_a_schema(server: Runtime) -> None:
    schema = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
    form = {"type": "json_schema", "json_schema": {"name": "receipt", "schema": schema}}
    answer = chat(server, A, "The total?", response_format=form, max_tokens=60, ignore_eos=False, n=2)
    for choice in answer["choices"]:
        assert choice["message"]["content"].startswith('{"total":')


def padded(image: Image.Image, size: int) -> str:
    """Return a PNG of so many bytes, with some behind its end, as a data URL."""
    return "data:image/png;base64," + base64.b64encode(png(image).ljust(size, b"\0")).decode()


@pytest.mark.parametrize(
    ("within", "over", "words"),
    [
        (url_of(Image.new("RGB", (100, 100))), url_of(Image.new("RGB", (101, 100))), "101 x 100 pixels, the most are"),
        (padded(A, 20_000), padded(A, 20_001), "20001 bytes, the most are 20000"),
    ],
    ids=["pixels", "bytes"],
)
def test_an_image_just_over_a_bound_is_refused_by_its_place(
    server: Runtime, within: str, over: str, words: str
) -> None:
    content = [text_part("See"), image_part(within)]
    chat(server, messages=[{"role": "user", "content": content}])
    place, message = refusal(server, *content, image_part(over))
    assert place == "messages[0].content[2]"
    assert words in message


def test_one_image_too_many_is_refused(server: Runtime) -> None:
    chat(server, A, A, A, "within")
    place, message = refusal(server, *[image_part(url_of(A))] * 4)
    assert place == "messages[0].content[3]"
    assert "4 images, the most are 3" in message


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,!!!", "not in base64"),
        ("data:image/png,abc", "has to be in base64"),
        ("data:image/png;base64,aGFsbG8=", "no image in a format that is read: PNG, JPEG, WEBP, GIF"),
        ("http://example.com/a.png", "--allow-image-hosts"),
        ("file:///etc/hostname", "--allow-image-hosts"),
    ],
)
def test_what_is_no_image_is_refused_by_its_place(server: Runtime, url: str, words: str) -> None:
    place, message = refusal(server, image_part(url))
    assert place == "messages[0].content[0]"
    assert words in message


def test_broken_files_are_refused_and_harm_nobody_else(server: Runtime) -> None:
    whole = png(A)
    cut = base64.b64encode(whole[: len(whole) // 2]).decode()
    bitmap = base64.b64encode(png(A, "BMP")).decode()
    for data in (cut, bitmap):
        place, _ = refusal(server, image_part(f"data:image/png;base64,{data}"))
        assert place == "messages[0].content[0]"
    narrow = Image.new("RGB", (9_000, 1))
    answer = post(server, CHAT, {"messages": [{"role": "user", "content": [image_part(url_of(narrow))]}]})
    assert answer.status_code in (200, 400), answer.text

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=str(server.url), timeout=120) as client:
            bodies = [url_of(A), f"data:image/png;base64,{cut}", url_of(B)]
            asked = [{"messages": [{"role": "user", "content": [image_part(url)]}], "max_tokens": 2} for url in bodies]
            keys = {"Authorization": "Bearer one"}
            return await asyncio.gather(*(client.post(CHAT, json=body, headers=keys) for body in asked))

    assert [answer.status_code for answer in asyncio.run(ask())] == [200, 400, 200]


def test_detail_is_honoured_or_refused(server: Runtime) -> None:
    for detail, status in (("auto", 200), ("high", 200), ("low", 400)):
        part = {"type": "image_url", "image_url": {"url": url_of(A), "detail": detail}}
        answer = post(server, CHAT, {"messages": [{"role": "user", "content": [part]}], "max_tokens": 2})
        assert answer.status_code == status, answer.text


def test_a_text_that_has_the_placeholder_is_no_image(server: Runtime, made: Made) -> None:
    answer = chat(server, A, "<image> is not one")
    assert judged(made, answer["prompt_token_ids"], [A], NUM_NEW)[0] == answer["choices"][0]["token_ids"]
    sampling = {"temperature": 0, "max_new_tokens": 2}
    wrong = post(server, "/generate", {"text": "<image><image>", "image_data": url_of(A), "sampling_params": sampling})
    assert wrong.status_code == 400
    assert "2 places" in wrong.json()["error"]["message"]


def test_an_engine_takes_images(server: Runtime, made: Made) -> None:
    content = [image_part(url_of(A)), text_part("What is it?")]
    expected = chat(server, A, "What is it?")["choices"][0]["message"]["content"]
    options = {"temperature": 0, "ignore_eos": True}
    with Engine(str(made.path), **SETTINGS) as engine:
        said = engine.chat([{"role": "user", "content": content}], max_tokens=NUM_NEW, **options)
        assert said["choices"][0]["message"]["content"] == expected
        prompt = "User: <image>What is it?\nAssistant: "
        sampling = {"max_new_tokens": NUM_NEW, **options}
        assert engine.generate(prompt, sampling, image_data=url_of(A))["text"] == expected
        with pytest.raises(RequestError, match=r"messages\[0\].content\[0\]: it is not in base64"):
            engine.chat([{"role": "user", "content": [image_part("data:;base64,%")]}], max_tokens=1)
