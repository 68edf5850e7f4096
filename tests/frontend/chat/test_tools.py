"""Tool calls of every format are parsed, however their text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.tools.calls import ToolCall
from ramiform.runtime.frontend.chat.tools.detect import detect_tool_format
from ramiform.runtime.frontend.chat.tools.formats import FORMATS
from ramiform.runtime.frontend.chat.tools.parser import ToolCallParser
from ramiform.runtime.protocol.sampling import Constraint
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend import templates
from ramiform.tests.frontend.harness import shipped_tokenizer

NAMES = ["get_weather", "add"]
Written = list[tuple[str, dict[str, Any]]]


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(name: str, calls: Written) -> str:
    """Calls as a model of that format writes them; by hand, after the models' own documentation."""
    match name:
        case "hermes":
            parts = [f'<tool_call>\n{{"name": {dump(n)}, "arguments": {dump(a)}}}\n</tool_call>' for n, a in calls]
            return "\n".join(parts)
        case "llama3_json":
            return "; ".join(f'{{"name": {dump(n)}, "parameters": {dump(a)}}}' for n, a in calls)
        case "pythonic":
            return "[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls) + "]"
        case "mistral":
            return "[TOOL_CALLS] " + dump([{"name": n, "arguments": a} for n, a in calls])
        case "mistral v11":
            return "".join(f"[TOOL_CALLS]{n}[ARGS]{dump(a)}" for n, a in calls)
        case "deepseek":
            inner = "\n".join(
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dump(a)}\n```<｜tool▁call▁end｜>"
                for n, a in calls
            )
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "deepseek v3.1":
            inner = "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dump(a)}<｜tool▁call▁end｜>" for n, a in calls)
            return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"
        case "kimi_k2":
            inner = "".join(
                f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{dump(a)}<|tool_call_end|>"
                for i, (n, a) in enumerate(calls)
            )
            return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"
        case "granite":
            return "<|tool_call|>" + dump([{"name": n, "arguments": a} for n, a in calls])
        case "phi4_mini":
            return "<|tool_call|>" + dump([{"name": n, "arguments": a} for n, a in calls]) + "<|/tool_call|>"
        case "qwen3_coder":
            return "\n".join(
                f"<tool_call>\n<function={n}>\n"
                + "".join(f"<parameter={k}>\n{raw(v)}\n</parameter>\n" for k, v in a.items())
                + "</function>\n</tool_call>"
                for n, a in calls
            )
        case "glm45":
            return "\n".join(
                f"<tool_call>{n}\n"
                + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{raw(v)}</arg_value>\n" for k, v in a.items())
                + "</tool_call>"
                for n, a in calls
            )
        case "minimax_m2":
            inner = "".join(
                f'<invoke name="{n}">\n'
                + "".join(f'<parameter name="{k}">{raw(v)}</parameter>\n' for k, v in a.items())
                + "</invoke>\n"
                for n, a in calls
            )
            return f"<minimax:tool_call>\n{inner}</minimax:tool_call>"
        case "seed_oss":
            return write("qwen3_coder", calls).replace("tool_call>", "seed:tool_call>")
        case "longcat":
            return write("hermes", calls).replace("tool_call>", "longcat_tool_call>")
        case "longcat tags":
            text = write("glm45", calls)
            for tag in ("tool_call>", "arg_key>", "arg_value>"):
                text = text.replace(f"<{tag}", f"<longcat_{tag}").replace(f"</{tag}", f"</longcat_{tag}")
            return text
        case "step3":
            inner = "".join(
                f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{n}">\n'
                + "".join(f'<steptml:parameter name="{k}">{raw(v)}</steptml:parameter>\n' for k, v in a.items())
                + "</steptml:invoke><｜tool_call_end｜>\n"
                for n, a in calls
            )
            return f"<｜tool_calls_begin｜>\n{inner}<｜tool_calls_end｜>"
        case "deepseek_v32" | "deepseek_v4":
            inner = "".join(
                f'<｜DSML｜invoke name="{n}">\n'
                + "".join(
                    f'<｜DSML｜parameter name="{k}" string="{dump(isinstance(v, str))}">{raw(v)}</｜DSML｜parameter>\n'
                    for k, v in a.items()
                )
                + "</｜DSML｜invoke>\n"
                for n, a in calls
            )
            tag = "function_calls" if name == "deepseek_v32" else "tool_calls"
            return f"<｜DSML｜{tag}>\n{inner}</｜DSML｜{tag}>"
        case "functiongemma":
            return "".join(f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>" for n, a in calls)
        case "gemma4":
            quote = '<|"|>'
            return "".join(f"<|tool_call>call:{n}{gemma(a, quote)}<tool_call|>" for n, a in calls)
        case "lfm2":
            return f"<|tool_call_start|>{write('pythonic', calls)}<|tool_call_end|>"
        case "lfm2 json":
            return f"<|tool_call_start|>{write('json', calls)}<|tool_call_end|>"
        case "olmo3":
            lines = [write("pythonic", [call])[1:-1] for call in calls]
            return "<function_calls>" + "\n".join(lines) + "</function_calls>"
        case "hunyuan_a13b":
            return f"<tool_calls>{write('json', calls)}</tool_calls>"
        case "apertus":
            return "<|tools_prefix|>" + dump([{n: a} for n, a in calls]) + "<|tools_suffix|>"
        case "granite_20b_fc":
            return "\n".join(f'<function_call> {{"name": {dump(n)}, "arguments": {dump(a)}}}' for n, a in calls)
        case "internlm":
            return "".join(
                f'<|action_start|><|plugin|>\n{{"name": {dump(n)}, "parameters": {dump(a)}}}<|action_end|>'
                for n, a in calls
            )
        case "json":
            return dump([{"name": n, "arguments": a} for n, a in calls])
        case "json fenced":
            return "```json\n" + dump({"name": calls[0][0], "arguments": calls[0][1]}) + "\n```"
    raise AssertionError(name)


DIALECTS = [
    "hermes",
    "llama3_json",
    "pythonic",
    "mistral",
    "mistral v11",
    "deepseek",
    "deepseek v3.1",
    "kimi_k2",
    "granite",
    "phi4_mini",
    "deepseek_v32",
    "deepseek_v4",
    "functiongemma",
    "gemma4",
    "lfm2",
    "lfm2 json",
    "olmo3",
    "hunyuan_a13b",
    "apertus",
    "granite_20b_fc",
    "internlm",
    "longcat",
    "json",
    "json fenced",
]
TAGGED = ["qwen3_coder", "glm45", "minimax_m2", "seed_oss", "step3", "longcat tags"]
MARKED = [
    *("hermes", "mistral", "deepseek", "kimi_k2", "granite", "phi4_mini", "deepseek_v32", "functiongemma", "gemma4"),
    *("lfm2", "olmo3", "hunyuan_a13b", "apertus", "granite_20b_fc", "internlm", "longcat"),
    *TAGGED,
]
SCHEMA = Constraint(
    "json_schema",
    """{"properties": {"city": {"type": "string"}, "unit": {"anyOf": [{"enum": ["k", "c"]}, {"type": "null"}]},
        "a": {"type": "integer"}, "b": {"type": "boolean"}, "d": {"type": "array"}}}""",
)


def raw(value: Any) -> str:
    return value if isinstance(value, str) else dump(value)


def gemma(value: Any, quote: str) -> str:
    """A value as Gemma writes it: keys are bare, texts stand between two quotes of their own."""
    match value:
        case dict():
            return "{" + ",".join(f"{key}:{gemma(each, quote)}" for key, each in value.items()) + "}"
        case list():
            return "[" + ",".join(gemma(each, quote) for each in value) + "]"
        case str():
            return f"{quote}{value}{quote}"
        case _:
            return dump(value)


def parse(dialect: str, pieces: list[str]) -> tuple[str, list[ToolCall]]:
    parser = ToolCallParser(FORMATS[dialect.split()[0]], NAMES, dict.fromkeys(NAMES, SCHEMA))
    parsed = [*(parser.feed(piece) for piece in pieces), parser.finish()]
    return "".join(part.text for part in parsed), [call for part in parsed for call in part.calls]


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


scalars = st.text("ab\"\\ {}é<,[]'\n", max_size=6) | st.integers(-99, 99) | st.booleans()
written_calls = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(["city", "a", "b"]), scalars, max_size=3)),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(st.sampled_from(DIALECTS), written_calls, st.lists(st.integers(0, 999), max_size=8))
def test_calls_are_read_whatever_the_pieces(dialect: str, calls: Written, places: list[int]) -> None:
    if dialect == "json fenced":
        calls = calls[:1]
    text, read = parse(dialect, cut(write(dialect, calls), places))
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in read] == calls


typed_calls = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.fixed_dictionaries(
            {},
            optional={
                "city": st.text("ab1\"\\\\ {}é<,[]'\n", max_size=8),
                "unit": st.sampled_from(["k", "c"]),
                "a": st.integers(-99, 99),
                "b": st.booleans(),
                "d": st.lists(st.integers(0, 9), max_size=3),
            },
        ),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(st.sampled_from(TAGGED), typed_calls, st.lists(st.integers(0, 999), max_size=8))
def test_arguments_written_as_texts_get_the_types_of_the_schema(
    dialect: str, calls: Written, places: list[int]
) -> None:
    text, read = parse(dialect, cut(write(dialect, calls), places))
    assert text == ""
    assert [(call.name, json.loads(call.arguments)) for call in read] == calls


nested = st.recursive(
    st.text('ab,:{}[]" \n', max_size=6) | st.integers(-9, 9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["k", "key2"]), inner, max_size=2),
    max_leaves=8,
)


@pytest.mark.slow
@given(
    st.sampled_from(["functiongemma", "gemma4", "deepseek_v32"]),
    st.dictionaries(st.sampled_from(["city", "a"]), nested, max_size=2),
    st.lists(st.integers(0, 999), max_size=8),
)
def test_values_may_nest(dialect: str, arguments: dict[str, Any], places: list[int]) -> None:
    text, [read] = parse(dialect, cut(write(dialect, [("add", arguments)]), places))
    assert (text, read.name, json.loads(read.arguments)) == ("", "add", arguments)


def test_literals_of_json_are_read_in_python_calls() -> None:
    [read] = parse("pythonic", ["[add(a=true, b=[null, {'c': false}])]"])[1]
    assert json.loads(read.arguments) == {"a": True, "b": [None, {"c": False}]}


def test_texts_without_a_schema_are_json_where_they_can_be() -> None:
    call = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=c>\nTrue\n</parameter>\n"
    reader = ToolCallParser(FORMATS["qwen3_coder"], NAMES)
    [read] = reader.feed(call + "<parameter=e>\nso so\n</parameter>\n</function>\n</tool_call>").calls
    assert json.loads(read.arguments) == {"a": 1, "c": True, "e": "so so"}


@pytest.mark.slow
@given(st.sampled_from(MARKED), written_calls, st.lists(st.integers(0, 999), max_size=8))
def test_text_before_calls_is_text(dialect: str, calls: Written, places: list[int]) -> None:
    text, read = parse(dialect, cut("I shall look.\n\n" + write(dialect, calls), places))
    assert text == "I shall look."  # the blanks before a call are its format's
    assert len(read) == len(calls)


@given(
    st.sampled_from(sorted(FORMATS)),
    st.text(alphabet='<tool_ca>[TOL]{"name": x\n', max_size=60),
    st.lists(st.integers(0, 99), max_size=6),
)
def test_what_is_no_call_comes_out_unchanged(name: str, text: str, places: list[int]) -> None:
    assert parse(name, cut(text, places)) == (text, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": \n</tool_call>'),
        ("hermes", '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call> and so on'),
        ("llama3_json", '{"name": "add", "parameters": {}} and then some'),
        ("pythonic", "[add(1, 2)]"),
        ("pythonic", "[add(a=__import__('os'))]"),
        ("mistral", "[TOOL_CALLS] nothing"),
        ("deepseek", "<｜tool▁calls▁begin｜>oops<｜tool▁calls▁end｜>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_calls_section_end|>"),
        ("granite", "<|tool_call|>[1]"),
        ("qwen3_coder", "<tool_call>\n<function=add>\n<parameter=a>1</invoke></tool_call> <function=add"),
        ("glm45", "<tool_call>add\n<arg_key>a</arg_key>1</arg_value></tool_call>"),
        ("glm45", "<tool_call>nobody</tool_call>"),
        ("minimax_m2", '<minimax:tool_call><invoke name="add"></minimax:tool_call>'),
        ("deepseek_v32", '<｜DSML｜function_calls><｜DSML｜invoke name="add"></｜DSML｜function_calls>'),
        ("functiongemma", "<start_function_call>call:add{a:<escape>b}<end_function_call>"),
        ("functiongemma", "<start_function_call>add{a:1}<end_function_call>"),
        ("gemma4", "<|tool_call>call:add{a:" + "[" * 500 + "<tool_call|>"),
        ("gemma4", "<|tool_call>call:add{a:1} and<tool_call|>"),
        ("gemma4", "<|tool_call>call:add{a}<tool_call|>"),
        ("lfm2", "<|tool_call_start|>import os<|tool_call_end|>"),
        ("olmo3", "<function_calls>add(a=1)\nx = 1</function_calls>"),
        ("apertus", '<|tools_prefix|>[{"add": 1}]<|tools_suffix|>'),
        ("internlm", "<|action_start|><|interpreter|>1+1<|action_end|>"),
        ("step3", "<｜tool_calls_begin｜>nothing<｜tool_calls_end｜>"),
        ("json", '{"city": "Paris"}'),
        ("json", "[" * 5000),
    ],
)
def test_a_call_that_is_malformed_is_text(name: str, text: str) -> None:
    assert parse(name, [text]) == (text, [])


def test_the_format_is_read_off_the_template() -> None:
    assert detect_tool_format(shipped_tokenizer()).name == "hermes"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ messages[-1].tool_calls[0].function | tojson }}", "json"),
        (templates.R1, "deepseek"),
        (
            '{% for m in messages %}{% for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "parameters": '
            "{{ c.function.arguments | tojson }}}{% endfor %}{% endfor %}",
            "llama3_json",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS][{{ c.function | tojson }}]"
            "{% endfor %}{% endfor %}",
            "mistral",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}[TOOL_CALLS]{{ c.function.name }}[ARGS]"
            "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
            "mistral_args",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<｜tool▁call▁begin｜>{{ c.function.name }}"
            "<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}{% endfor %}",
            "deepseek_v31",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<｜tool▁call▁begin｜>function<｜tool▁sep｜>"
            "{{ c.function.name }}{% endfor %}{% endfor %}",
            "deepseek",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call><function={{ c.function.name }}>"
            "</function></tool_call>{% endfor %}{% endfor %}",
            "qwen3_coder",
        ),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}"
            "{% for k in c.function.arguments %}<arg_key>{{ k }}</arg_key>{% endfor %}</tool_call>"
            "{% endfor %}{% endfor %}",
            "glm45",
        ),
        ("{% if tools %}Between <minimax:tool_call> tags.{% endif %}", "minimax_m2"),
        (
            "{% for m in messages %}{% for c in m.tool_calls or [] %}<|tool_call_begin|>{{ c.id }}"
            "<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>{% endfor %}{% endfor %}",
            "kimi_k2",
        ),
        ("{% if tools %}<|tool|>{{ tools | tojson }}<|/tool|>{% endif %}", "phi4_mini"),
        *(
            (
                "{% for m in messages %}{% for c in m.tool_calls or [] %}" + written + "{% endfor %}{% endfor %}",
                name,
            )
            for written, name in (
                ('<｜DSML｜function_calls><｜DSML｜invoke name="{{ c.function.name }}">', "deepseek_v32"),
                ('<｜DSML｜tool_calls><｜DSML｜invoke name="{{ c.function.name }}">', "deepseek_v4"),
                ("<start_function_call>call:{{ c.function.name }}{}<end_function_call>", "functiongemma"),
                ("<|tool_call>call:{{ c.function.name }}{}<tool_call|>", "gemma4"),
                ("<seed:tool_call><function={{ c.function.name }}></function></seed:tool_call>", "seed_oss"),
                ("<longcat_tool_call>{{ c.function | tojson }}</longcat_tool_call>", "longcat"),
                ('<｜tool_calls_begin｜><steptml:invoke name="{{ c.function.name }}">', "step3"),
                ("<|tools_prefix|>[{{ c.function | tojson }}]<|tools_suffix|>", "apertus"),
                ("<|action_start|><|plugin|>{{ c.function | tojson }}<|action_end|>", "internlm"),
            )
        ),
        ("{% if tools %}<|tool_list_start|>{{ tools | tojson }}<|tool_list_end|>{% endif %}", "lfm2"),
        ("{% if tools %}Write <function_calls> first.{% endif %}", "olmo3"),
        ("{% if tools %}Write <tool_calls> first.{% endif %}", "hunyuan_a13b"),
        ("{% if tools %}Write <function_call> first.{% endif %}", "granite_20b_fc"),
        ("{% if tools %}Write <|tool_call|> first.{% endif %}", "granite"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "json"),
        (
            "{% if tools %}Write <tool_call> first.{% endif %}{{ raise_exception('no') if messages|length > 1 }}",
            "hermes",
        ),
    ],
)
def test_templates_show_how_they_write_calls(template: str, name: str) -> None:
    class Told:
        chat = ChatTemplate(template, {})

    assert detect_tool_format(Told()).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize("template", templates.ALL.values(), ids=templates.ALL.keys())
def test_a_template_that_knows_no_calls_gets_plain_json(template: str) -> None:
    class Told:
        chat = ChatTemplate(template, templates.NAMES)

    assert detect_tool_format(Told()).name == "json"  # type: ignore[arg-type]
