"""The files in runtime/shipped_model: readable by transformers, lossless, small."""

from __future__ import annotations

import itertools
import json

import pytest

from ramiform.examples.demo_model.corpus.case import ASSISTANT, TOOL, USER, chat, tool_call
from ramiform.examples.demo_model.corpus.mix import cases

transformers = pytest.importorskip("transformers")

ODD = [
    "",
    " ",
    "\n\n \t",
    "héllo wörld",
    "日本語のテキスト",
    "🙂👩‍👩‍👧",
    "\u0000\u200b\ufeff",
    "İıſẞ",
    "a  b   c",
    "１２³½",
    "Ada42Bell",
    "ALLCAPS",
    "<|not a mark|>",
    '{"a": [1, -2.5e3, null]}',
    "line\r\nline",
    "\u0301\u0301",
    "ǅ",
    " \U0010ffff",
]


@pytest.fixture(scope="module")
def tokenizer(shipped):
    return transformers.AutoTokenizer.from_pretrained(shipped)


@pytest.mark.parametrize("text", ODD)
def test_any_text_survives_the_tokenizer(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_names_and_numbers_are_the_same_tokens_everywhere(tokenizer):
    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False)

    name = ids("Zorvan")
    for around in ("said Zorvan", '"Zorvan"', "[Zorvan]", "\nZorvan"):
        assert str(name)[1:-1] in str(ids(around))
    assert len(ids("40713")) == 5


def test_tool_call_marks_are_single_tokens_that_decoding_keeps(tokenizer):
    ids = tokenizer.encode("<tool_call>\n{}\n</tool_call><|end|>", add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<tool_call>\n{}\n</tool_call>"
    assert ids[0] == tokenizer.convert_tokens_to_ids("<tool_call>")


WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def test_the_chat_template_writes_what_the_model_was_trained_on(tokenizer):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather in Rome?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
            ],
        },
        {"role": "tool", "content": '{"weather": "sunny"}', "tool_call_id": "1"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "Thanks!"},
    ]
    turns = [
        (USER, "Weather in Rome?"),
        (ASSISTANT, tool_call("get_weather", {"city": "Rome"})),
        (TOOL, '{"weather": "sunny"}'),
        (ASSISTANT, "Sunny."),
        (USER, "Thanks!"),
    ]
    for tool in (WEATHER, {"type": "function", "function": WEATHER}):
        got = tokenizer.apply_chat_template(messages, tools=[tool], add_generation_prompt=True, tokenize=False)
        assert got == "<|bos|>" + chat(turns, "Be kind.", [WEATHER])
    got = tokenizer.apply_chat_template(messages[1:2], add_generation_prompt=True, tokenize=False)
    assert got == "<|bos|><|user|>\nWeather in Rome?<|end|>\n<|assistant|>\n"
    got = tokenizer.apply_chat_template(messages[1:2], tools=[WEATHER], add_generation_prompt=True, tokenize=False)
    assert got == "<|bos|>" + chat(turns[:1], None, [WEATHER])


def test_arguments_may_be_a_json_string_as_in_the_openai_api(tokenizer):
    call = {"function": {"name": "f", "arguments": '{"x": 1}'}}
    got = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "", "tool_calls": [call, call]}], tokenize=False
    )
    one = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert got == f"<|bos|><|assistant|>\n{one}\n{one}<|end|>\n"


def test_training_documents_follow_the_vocabulary_s_rules(tokenizer):
    text = "".join(case.document for case in itertools.islice(cases(5), 200))
    assert len(text) / len(tokenizer.encode(text)) > 2.5


def test_the_files_are_small(shipped):
    assert sum(file.stat().st_size for file in shipped.iterdir() if file.is_file()) < 25_000_000
    assert (shipped / "model.safetensors").stat().st_size < 14_000_000


def test_configuration_and_tokenizer_agree(shipped, tokenizer):
    config = json.loads((shipped / "config.json").read_text())
    generation = json.loads((shipped / "generation_config.json").read_text())
    assert config["vocab_size"] == len(tokenizer)
    assert (
        generation["eos_token_id"] == tokenizer.convert_tokens_to_ids(["<|eos|>", "<|end|>"]) == config["eos_token_id"]
    )
    assert config["bos_token_id"] == tokenizer.bos_token_id
