"""Calls are read as they were meant, in every format, with the habits of models, however the answer is cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.harmony import HarmonyParser
from ramiform.runtime.frontend.chat.tools.bare import asks_to_be_shown
from ramiform.runtime.frontend.chat.tools.formats import FORMATS
from ramiform.runtime.frontend.chat.tools.parser import ToolCallParser
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.tests.frontend.chat.model_texts import FAMILIES, Text, draw_text
from ramiform.tests.frontend.chat.texts_that_show_calls import TEXTS
from ramiform.tests.fuzzing import fuzz

NUM_SHORT = 90  # characters of a text that is cut at every place


def read_pieces(
    name: str, pieces: list[str], schemas: dict[str, Any], *, reads_bare: bool = False
) -> tuple[str, list[tuple[str, str]]]:
    """Return the text and the calls of an answer that comes in pieces, in the format of a name."""
    known = {key: Constraint("json_schema", json.dumps(schema)) for key, schema in schemas.items()}
    if name == "harmony":
        harmony = HarmonyParser(known, known, reads_bare=reads_bare)
        outputs = [*(harmony.feed(piece) for piece in pieces), harmony.finish()]
        texts, calls = [each.content for each in outputs], [call for each in outputs for call in each.calls]
    else:
        parser = ToolCallParser(FORMATS[name], known, known, reads_bare=reads_bare)
        parts = [*(parser.feed(piece) for piece in pieces), parser.finish()]
        texts, calls = [part.text for part in parts], [call for part in parts for call in part.calls]
    return "".join(texts), [(call.name, call.arguments) for call in calls]


def read(meant: Text, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    return read_pieces(meant.format, pieces, meant.schemas, reads_bare=True)


def judge(seed: int) -> None:
    meant = draw_text(seed)
    text = meant.text
    whole = read(meant, [text])
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == meant.calls, (seed, meant)
    assert whole[0].split() == meant.said.split(), (seed, meant)
    draw = random.Random(seed)
    cuts = [sorted(draw.choices(range(len(text) + 1), k=draw.randint(1, 12))) for _ in range(2)]
    if len(text) <= NUM_SHORT:
        cuts += [list(range(len(text))), *([place] for place in range(len(text)))]
    for places in cuts:
        pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(meant, pieces) == whole, (seed, pieces)


@pytest.mark.exhaustive
def test_calls_are_read_as_they_were_meant() -> None:
    for seed in range(1500):
        judge(seed)


@pytest.mark.slow
@fuzz(st.integers(1500, 1 << 40), examples=30)
def test_many_more_calls_are_read_as_they_were_meant(seed: int) -> None:
    judge(seed)


def test_the_texts_are_of_every_format_and_of_every_habit() -> None:
    assert {family.format for family in FAMILIES} == FORMATS.keys()
    seen = [draw_text(seed) for seed in range(600)]
    habits = {"bare", "no begin", "no end", "unclosed", "between", "comma", "literals", "single", "fence"}
    assert set().union(*(text.habits for text in seen)) == habits


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
    "required": ["city"],
}
SEARCH = {"type": "object", "properties": {"query": {"type": "string"}, "tags": {"type": "array"}}}
CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
PARIS = [("get_weather", {"city": "Paris"})]


def read_both(
    name: str, text: str, schemas: dict[str, Any], **options: Any
) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """Return what a text is read as; assert that its characters, one by one, are read as the same."""
    whole, each = (read_pieces(name, pieces, schemas, **options) for pieces in ([text], list(text)))
    assert whole == each
    return whole[0], [(called, json.loads(arguments)) for called, arguments in whole[1]]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_text_that_shows_a_call_is_none(name: str) -> None:
    assert len(TEXTS) == 40
    for text in TEXTS:
        assert read_both(name, text, {"get_weather": WEATHER, "search": SEARCH}, reads_bare=True) == (text, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CALL, ""),
        (f" \n{CALL}\n", ""),
        (f"```json\n{CALL}\n```", ""),
        (f"```\n{CALL}\n```\n", ""),
        (f"```json\n{CALL}", ""),
        (f"I look it up.\n\n{CALL}", "I look it up."),
        (f"I use `get_weather`:\n```json\n{CALL}\n```", "I use `get_weather`:"),
        (f"[{CALL}]", ""),
        (CALL.replace("arguments", "parameters"), ""),
        (f'{{"type": "function", "function": {CALL}}}', ""),
        (f"{CALL}\n</tool_call>", ""),
        ("{'name': 'get_weather', 'arguments': {'city': 'Paris'}}", ""),
    ],
)
def test_json_that_is_the_whole_answer_is_a_call_unless_reading_is_strict(text: str, said: str) -> None:
    assert read_both("hermes", text, {"get_weather": WEATHER}, reads_bare=True) == (said, PARIS)
    assert read_both("hermes", text, {"get_weather": WEATHER}) == (text, [])


def test_text_that_is_surely_no_call_is_not_held_back() -> None:
    for text in ("Paris is the capital", '{"city": "Par', "```python\nprint(", f"{CALL[:20].replace('name', 'nom')}"):
        parser = ToolCallParser(FORMATS["hermes"], ["get_weather"], reads_bare=True)
        assert "".join(parser.feed(character).text for character in text) == text


def test_the_labelled_answers_of_a_small_model_are_read_as_they_were_meant() -> None:
    """Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, at temperature 0; labels by hand. bench/agents/tool_questions.py asks."""
    labelled = json.loads((Path(__file__).parent / "tool_questions.json").read_text("utf-8"))
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in labelled["tools"]}
    num_meant = num_read = 0
    assert len(labelled["answers"]) == 40
    for one in labelled["answers"]:
        offered = {name: schemas[name] for name in one["tools"]}
        reads_bare = not asks_to_be_shown([{"role": "user", "content": one["question"]}])
        _, calls = read_both("hermes", one["answer"], offered, reads_bare=reads_bare)
        meant = [(name, arguments) for name, arguments in one["calls"]]
        assert calls in ([], meant), one
        num_meant += bool(meant)
        num_read += bool(calls)
    assert num_read >= 0.9 * num_meant, (num_read, num_meant)


STR = {"f": {"type": "object", "properties": {"str": {"type": "string"}, "i": {"type": "integer"}}}}
QUOTED = {"str": "see {end} there"}


@pytest.mark.parametrize(
    ("name", "text", "said", "arguments"),
    [
        (
            "qwen3_coder",
            "Looking.\n\n<function=f>\n<parameter=str>\na\n</parameter>\n</function>\n</tool_call>",
            "Looking.",
            {"str": "a"},
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=str>\na\n<parameter=i>\n3\n</parameter>\n</function>\n</tool_call>",
            "",
            {"str": "a", "i": 3},
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=str>\na\n</function>\n</tool_call> So.",
            " So.",
            {"str": "a"},
        ),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"str": "see </tool_call>"}}</tool_call>', "", None),
        ("mistral_args", '[TOOL_CALLS]f[ARGS]{"str": "see [TOOL_CALLS]"}', "", None),
        ("lfm2", "<|tool_call_start|>[f(str='see <|tool_call_end|>')]<|tool_call_end|>", "", None),
        ("olmo3", "<function_calls>f(str='see </function_calls>')</function_calls>", "", None),
        (
            "internlm",
            '<|action_start|><|plugin|>{"name": "f", "parameters": {"str": "see <|action_end|>"}}<|action_end|>',
            "",
            None,
        ),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"str": "see <|tool_call_end|>"}<|tool_call_end|><|tool_calls_section_end|>',
            "",
            None,
        ),
        (
            "deepseek_v31",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"
            '{"str": "see <｜tool▁call▁end｜>"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            "",
            None,
        ),
        ("mistral_args", '[TOOL_CALLS]f[ARGS]{"str": "a"} Done.', " Done.", {"str": "a"}),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"str": "a"}}] Done.', " Done.", {"str": "a"}),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": {"str": "a"}}]\nDone.', "\nDone.", {"str": "a"}),
    ],
)
def test_reported_texts_are_read(name: str, text: str, said: str, arguments: dict[str, Any] | None) -> None:
    read_said, [(called, read_arguments)] = read_both(name, text, STR)
    assert (read_said, called) == (said, "f")
    assert read_arguments == arguments if arguments is not None else read_arguments["str"].startswith("see ")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "null"]},
        {"type": "string", "nullable": True},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ],
)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=s>\nnull\n</parameter>\n</function>\n</tool_call>"),
        ("seed_oss", "<seed:tool_call><function=f><parameter=s>null</parameter></function></seed:tool_call>"),
        (
            "minimax_m2",
            '<minimax:tool_call><invoke name="f"><parameter name="s">null</parameter></invoke></minimax:tool_call>',
        ),
        ("glm45", "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>null</arg_value>\n</tool_call>"),
    ],
)
def test_null_is_null_where_a_string_may_be_null(name: str, text: str, schema: dict[str, Any]) -> None:
    nullable, plain = ({"f": {"type": "object", "properties": {"s": each}}} for each in (schema, {"type": "string"}))
    assert read_both(name, text, nullable) == ("", [("f", {"s": None})])
    assert read_both(name, text, plain) == ("", [("f", {"s": "null"})])


def test_values_that_json_cannot_hold_are_no_arguments() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"i": NaN}}</tool_call>'
    assert read_both("hermes", text, STR) == (text, [])
    [(_, arguments)] = read_both("hermes", text.replace("NaN", '"\\ud800"'), STR)[1]
    assert arguments == {"i": "\ud800"}
