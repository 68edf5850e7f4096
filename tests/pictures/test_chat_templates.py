"""Chats over HTTP with a template of each class's own form. Judges: transformers' rendering of the template, and its
model's greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from PIL import Image
from transformers import PreTrainedTokenizerFast

from ramiform.runtime.processes.launch import Runtime
from ramiform.tests.operations.scrape import scrape

from .checkpoint import Made, expanded, judged, make_checkpoint, picture
from .served import serve, url_of

A, B = picture(1), picture(2, 70, 30)
NUM_NEW = 6
# As the checkpoints of each class write turns: a default system message, images before texts, marks around images.
_CHATML = (
    "{%% for message in messages %%}%s<|im_start|>{{ message.role }}\n"
    "{%% if message.content is string %%}{{ message.content }}{%% else %%}{%% for part in message.content %%}"
    "{%% if part.type == 'image' or 'image' in part %%}%s{%% elif 'text' in part %%}{{ part.text }}{%% endif %%}"
    "{%% endfor %%}{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
_DEFAULT_SYSTEM = (
    "{% if loop.first and message.role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    "{% endif %}"
)
_QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"


class Form(NamedTuple):
    """A class's chat template, and what it writes for an image."""

    template: str
    mark: str


FORMS = {
    "Qwen2VL": Form(_CHATML % (_DEFAULT_SYSTEM, _QWEN_MARK), "<|image_pad|>"),
    "Qwen3VL": Form(_CHATML % ("", _QWEN_MARK), "<|image_pad|>"),
    "InternVL": Form(_CHATML % ("", "<IMG_CONTEXT>\n"), "<IMG_CONTEXT>"),
    "Llava": Form(
        "{% for message in messages %}{% if message.role != 'system' %}{{ message.role.upper() ~ ': ' }}{% endif %}"
        "{% for part in message.content if part.type == 'image' %}<image>\n{% endfor %}"
        "{% for part in message.content if part.type == 'text' %}{{ part.text ~ ' ' }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}ASSISTANT:{% endif %}",
        "<image>",
    ),
    "Mistral3": Form(
        "{% for message in messages %}{% if message.role == 'user' %}[INST]{% if message.content is string %}"
        "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}"
        "{% elif part.type in ['image', 'image_url'] %}[IMG]{% else %}"
        "{{ raise_exception('Only text and image blocks are supported in message content!') }}{% endif %}{% endfor %}"
        "{% endif %}[/INST]{% else %}{{ message.content[0].text }}{% endif %}{% endfor %}",
        "[IMG]",
    ),
}


class Served(NamedTuple):
    made: Made
    form: Form
    runtime: Runtime


@pytest.fixture(scope="module", params=[*FORMS])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made, form = make_checkpoint(tmp_path_factory.mktemp("checkpoint"), request.param), FORMS[request.param]
    made.tokenizer.save(str(made.path / "tokenizer.json"))
    (made.path / "tokenizer_config.json").write_text(json.dumps({"chat_template": form.template}))
    with serve(made, port=0) as runtime:
        yield Served(made, form, runtime)


def rendered(served: Served, *parts: str | Image.Image) -> list[int]:
    """Return the ids of a message, with the template rendered by transformers."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=served.made.tokenizer, chat_template=served.form.template)
    messages = [{"role": "user", "content": content}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    images = [part for part in parts if not isinstance(part, str)]
    first, *others = text.split(served.form.mark)
    for image, other in zip(images, others, strict=True):
        first += expanded(served.made, image) + other
    ids: list[int] = served.made.tokenizer.encode(first, add_special_tokens=False).ids
    return ids


@pytest.mark.exhaustive
def test_a_chat_has_the_prompt_of_the_template_and_the_judges_tokens(served: Served) -> None:
    with httpx.Client(base_url=str(served.runtime.url), timeout=120) as client:

        def ask(*parts: str | Image.Image) -> dict[str, Any]:
            content = [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image_url", "image_url": {"url": url_of(part)}}
                for part in parts
            ]
            body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": NUM_NEW,
                    "ignore_eos": True, "return_token_ids": True}  # fmt: skip
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            assert found["prompt_token_ids"] == rendered(served, *parts)
            images = [part for part in parts if not isinstance(part, str)]
            expected, _ = judged(served.made, found["prompt_token_ids"], images, NUM_NEW)
            assert found["choices"][0]["token_ids"] == expected
            return found

        before = scrape(client)
        first = ask(A, "What is it?")
        [[begin, end]] = first["prompt_image_places"]
        assert first["usage"]["prompt_tokens_details"]["image_tokens"] <= end - begin
        again = ask(A, "How large is it?")
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= end
        ask("First", A, "then", B, "and", A, "Which differs?")
        assert scrape(client).since(before)("ramiform_tower_seconds_count") == 2
