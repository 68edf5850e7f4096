"""Tokenizers and chat templates that a stranger wrote are loaded or refused by name."""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ramiform.runtime.protocol.errors import RamiformError
from ramiform.runtime.tokenizer import load_tokenizer
from ramiform.runtime.tokenizer.chat_template import ChatTemplate, load_chat_template
from ramiform.tests.frontend import templates
from ramiform.tests.fuzzing import dump, fuzz, mutated_bytes, mutated_json, mutated_text

from .conftest import KINDS

FOLDER = tempfile.TemporaryDirectory(prefix="ramiform-any-bytes-")
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief>."},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
]


@functools.cache
def written(kind: str) -> Path:
    folder = Path(FOLDER.name) / kind
    folder.mkdir()
    KINDS[kind](folder)
    return folder


def load(kind: str, name: str, data: bytes) -> None:
    """Load the tokenizer with one of its files replaced, and encode and decode with it."""
    file = written(kind) / name
    before = file.read_bytes()
    try:
        file.write_bytes(data)
        with contextlib.suppress(RamiformError):
            tokenizer = load_tokenizer(written(kind))
            ids = tokenizer.encode("Hello world, é 1\n<|eos|>")
            b"".join(tokenizer.token_bytes[token] or b"" for token in ids)
    finally:
        file.write_bytes(before)


@functools.cache
def small(kind: str) -> Any:
    """A tokenizer.json with a short vocabulary, so that mutations meet the other fields too."""
    state = json.loads((written(kind) / "tokenizer.json").read_bytes())
    kept = dict(list(state["model"]["vocab"].items())[:270])
    merges = [merge for merge in state["model"]["merges"] if all(part in kept for part in (*merge, "".join(merge)))]
    state["model"] |= {"vocab": kept, "merges": merges[:10]}
    return state


@pytest.mark.slow
@fuzz(
    st.sampled_from(["byte_level", "metaspace"]).flatmap(
        lambda kind: st.tuples(st.just(kind), mutated_json([small(kind), {**small(kind), "model": {"type": "BPE"}}]))
    ),
    examples=60,
)
def test_any_tokenizer_json_is_loaded_or_refused(example: tuple[str, Any]) -> None:
    load(example[0], "tokenizer.json", dump(example[1]))


@pytest.mark.slow
@fuzz(
    st.deferred(
        lambda: mutated_json([config(), json.loads((written("byte_level") / "tokenizer_config.json").read_text())])
    ),
    examples=60,
)
def test_any_tokenizer_config_is_read_or_refused(value: Any) -> None:
    load("byte_level", "tokenizer_config.json", dump(value))


def config() -> Any:
    special = {"0": {"content": "<|bos|>", "special": True, "lstrip": False}}
    return {"eos_token": {"content": "<|eos|>"}, "added_tokens_decoder": special, "chat_template": "{{ messages }}"}


@pytest.mark.slow
@fuzz(
    st.deferred(lambda: mutated_bytes([(written("sentencepiece_unigram") / "tokenizer.model").read_bytes()])),
    examples=60,
)
def test_any_sentencepiece_model_is_loaded_or_refused(data: bytes) -> None:
    load("sentencepiece_unigram", "tokenizer.model", data)


@fuzz(st.deferred(lambda: mutated_bytes([(written("ranks") / "tokenizer.model").read_bytes()])), examples=60)
def test_any_tiktoken_ranks_are_loaded_or_refused(data: bytes) -> None:
    load("ranks", "tokenizer.model", data)


@pytest.mark.slow
@fuzz(mutated_text([*templates.ALL.values(), "{% macro m(x) %}{{ x|tojson }}{% endmacro %}{{ m(messages[0]) }}"]))
def test_any_template_renders_or_refuses(source: str) -> None:
    with contextlib.suppress(RamiformError):
        template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
        template.render(MESSAGES, tools=[{"type": "function", "function": {"name": "f"}}], add_generation_prompt=True)


@fuzz(mutated_json([{"chat_template": "a"}, {"chat_template": [{"name": "default", "template": "a"}]}]), examples=60)
def test_any_template_file_is_read_or_refused(value: Any) -> None:
    folder = Path(FOLDER.name)
    (folder / "chat_template.json").write_bytes(dump(value))
    with contextlib.suppress(RamiformError):
        load_chat_template(folder, value, {})
