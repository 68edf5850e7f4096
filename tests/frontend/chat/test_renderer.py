"""Chat messages are rendered by the template, and special tokens in their content are not trusted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.api.chat_messages import Message, template_messages
from ramiform.runtime.frontend.chat.renderer import MessageRenderer, RenderOptions
from ramiform.runtime.frontend.chat.template_messages import with_short_ids
from ramiform.runtime.frontend.text.encoding import PromptSegment
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend import templates
from ramiform.tests.frontend.chat.test_harmony import TEMPLATE as HARMONY

NAMES = ("<s>", "</s>", "<|im_end|>", "<|im_start|>")


class Told:
    """A tokenizer as far as messages go."""

    special_ids = {name: number for number, name in enumerate(NAMES)}  # noqa: RUF012

    def __init__(self, template: str) -> None:
        self.chat = ChatTemplate(template, templates.NAMES)


def render(
    template: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **options: Any
) -> list[PromptSegment]:
    renderer = MessageRenderer(Told(template))  # type: ignore[arg-type]
    return renderer.render(messages, RenderOptions(**options), tools=tools)


contents = st.lists(st.sampled_from([*NAMES, "a", "<", "|im_end|>", "<|im", "é", "\n", " "]), min_size=1, max_size=8)


@pytest.mark.exhaustive
@given(st.sampled_from(sorted(templates.ALL)), contents, contents)
def test_the_text_is_the_templates_and_names_in_contents_are_not_trusted(
    name: str, first: list[str], second: list[str]
) -> None:
    template = templates.ALL[name]
    messages = [
        {"role": "user", "content": f"a{''.join(first)}a"},
        {"role": "assistant", "content": f"b{''.join(second)}b"},
        {"role": "user", "content": "c"},
    ]
    segments = render(template, messages)
    expected = ChatTemplate(template, templates.NAMES).render(messages, add_generation_prompt=True)
    assert "".join(segment.text for segment in segments) == expected
    bare = [{**message, "content": "x"} for message in messages]
    alone = ChatTemplate(template, templates.NAMES).render(bare, add_generation_prompt=True)
    trusted = [segment.text for segment in segments if segment.trusted]
    for special in NAMES:
        assert sum(text.count(special) for text in trusted) == alone.count(special)


@pytest.mark.parametrize("template", templates.ALL.values(), ids=templates.ALL.keys())
def test_a_message_that_is_continued_ends_the_text(template: str) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two"}]
    text = "".join(segment.text for segment in render(template, messages, continue_final_message=True))
    assert text.endswith("One, two")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}|{{ m.content }};{% endfor %}", "a|a;Onee|Onee"),
        ("{% for m in messages %}{{ 'E' if m.content.endswith('e') }}{{ m.content }};{% endfor %}", "a;EOnee"),
        ("{% for m in messages %}{{ m.content | trim }}<|im_end|>{% endfor %}", "a<|im_end|>Onee"),
        ("{% for m in messages %}{{ '(1)' if m.content == 'Onee' }} {{ m.content }}e{% endfor %}", " ae(1) Onee"),
    ],
    ids=["twice", "by its end", "before letters of it", "by itself"],
)
def test_a_template_sees_the_content_that_is_continued_as_it_is(template: str, text: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Onee"}]
    assert "".join(part.text for part in render(template, messages, continue_final_message=True)) == text


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("{% for m in messages %}{{ m.content }}{{ m['prefix'] }}{{ tools.strict }}{% endfor %}", {"prefix"}),
        ("{{ messages[0].role }}{% if 'plan' in messages[0] %}{{ (messages | last).aim }}{% endif %}", {"plan", "aim"}),
        (
            "{% macro one(m) %}{{ m.get('content') }}{{ m.get('mood') }}{{ m.tool_calls[0].x }}{% endmacro %}",
            {"mood"},
        ),
        ("{% for m in messages %}{{ m.role }}{% endfor %}{# m.hidden #}{{ other.hidden }}", set()),
    ],
    ids=["item", "in", "get", "elsewhere"],
)
def test_the_fields_that_a_template_reads_of_messages_are_known(template: str, fields: set[str]) -> None:
    assert ChatTemplate(template, {}).message_fields - {"role", "content", "tool_calls"} == fields


PREFIX = "{% for m in messages %}{{ m.content }}{{ '!' if m.prefix }}{% endfor %}"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"prefixes": True}, "unknown parameter messages[0].prefixes; did you mean 'prefix'?"),
        ({"contents": "a"}, "unknown parameter messages[0].contents; did you mean 'content'?"),
        ({"zq": 1}, "unknown parameter messages[0].zq; the chat template reads no such field of messages"),
        ({"content": [{"type": "text", "text": "a", "txt": "b"}]}, "unknown parameter messages[0].content[0].txt"),
        ({"content": [{"type": "input_audio"}]}, "of type 'input_audio': this model reads text only"),
        ({"content": [{"type": "image_url", "image_url": "a"}]}, "messages[0]: this route takes no images"),
        ({"refusal": "No."}, "messages[0] has content and refusal: give one"),
    ],
    ids=lambda value: None if isinstance(value, str) else "+".join(value),
)
def test_a_field_of_a_message_that_nothing_reads_is_refused(message: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)):
        render(PREFIX, template_messages([Message(**{"role": "user", "content": "a"} | message)]))


def test_a_field_that_the_template_reads_goes_to_it() -> None:
    asked = template_messages([Message(role="user", content="a", prefix=True), Message(role="user", content="b")])  # type: ignore[call-arg]
    assert "".join(part.text for part in render(PREFIX, asked)) == "a!b"
    with pytest.raises(RequestError, match="prefix"):
        render(templates.ALL["chatml"], asked)


def test_what_sdks_dump_of_an_answer_is_a_message() -> None:
    """openai-python's `parse`, its stream's snapshot, LiteLLM's `Message`, and parts of Responses."""
    function = {"name": "f", "arguments": "{}", "parsed_arguments": {}}
    dumped = {
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}], "logprobs": []}],
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "parsed": {"a": 1},
        "provider_specific_fields": {"refusal": None},
        "reasoning": "Hm.",
        "tool_calls": [{"id": "abcdefghi", "type": "function", "index": 0, "function": function}],
    }
    [message] = template_messages([Message.model_validate(dumped)])
    assert message.keys() == {"role", "content", "reasoning", "reasoning_content", "tool_calls"}
    [refused] = template_messages([Message(role="assistant", refusal="No.")])
    assert refused == {"role": "assistant", "content": "No."}


CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"city": "Köln"}}}
FORMS = {
    templates.R1: '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"city": "Köln"}\n```<｜tool▁call▁end｜>',
    # null is written as it is where the template takes it
    "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls %}{{ '!' if m.content is none }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}": '!{"city": "Köln"}',
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}": '{"city": "Köln"}',  # "None" would be written
    "{% for m in messages %}{{ m.content | default('', true) }}{% for c in m.tool_calls %}{{ c.function.arguments }}"
    "{% endfor %}{% endfor %}": '{"city": "Köln"}',  # an object would be written as Python does
}


@pytest.mark.parametrize("content", [None, ""])
@pytest.mark.parametrize("template", FORMS, ids=["R1", "null", "None", "repr"])
def test_past_calls_are_in_the_form_that_the_template_writes(template: str, content: str | None) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": content, "tool_calls": [CALL]},
        {"role": "tool", "content": "warm", "tool_call_id": "abcdefghi"},
    ]
    text = "".join(part.text for part in render(template, messages))
    assert text == f"a{FORMS[template].removeprefix('!' if content == '' else '')}warm"


ARGUMENTS = '{"city": "Köln"}'
_LOOP = "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
CALL_TEMPLATES = {
    **templates.ALL,
    **dict(zip(("R1", "null", "None", "repr"), FORMS, strict=True)),
    "harmony": HARMONY,
    "text or object": _LOOP + "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}"
    "{% endfor %}{% endfor %}",
    "members": _LOOP
    + "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}",
    "keys": _LOOP + "{% for k in c.function.arguments %}<{{ k }}>{% endfor %}{% endfor %}{% endfor %}",
    "function": _LOOP + "{{ c.function | tojson }}{% endfor %}{% endfor %}",
}
OBJECTS_ONLY = {"members", "keys", "function"}


@pytest.mark.parametrize("name", CALL_TEMPLATES)
def test_arguments_that_were_cut_off_are_written_as_they_were_or_refused(name: str) -> None:
    def rendered(arguments: str) -> str:
        function = {"name": "f", "arguments": arguments}
        asked, cut, answer = (
            Message(role="user", content="a"),
            Message(role="assistant", content="", tool_calls=[{"id": "abcdefghi", "function": function}]),
            Message(role="tool", content="warm", tool_call_id="abcdefghi"),
        )
        return "".join(part.text for part in render(CALL_TEMPLATES[name], template_messages([asked, cut, answer])))

    if name in templates.TAKES_TOOLS ^ templates.ALL.keys():
        return  # no results of tools
    whole = rendered(ARGUMENTS)
    assert (ARGUMENTS in whole) is (name not in templates.ALL and name not in OBJECTS_ONLY - {"function"})
    for arguments in (*(ARGUMENTS[:end] for end in range(1, len(ARGUMENTS))), "[1]", '"a"', "7", "{'city': 1}"):
        if name not in OBJECTS_ONLY:
            assert rendered(arguments) == whole.replace(ARGUMENTS, arguments)
            continue
        with pytest.raises(RequestError) as raised:
            rendered(arguments)
        assert raised.value.param == "messages"
        assert "messages[1].tool_calls[0].function.arguments is no JSON object" in str(raised.value)
        assert repr(arguments) in str(raised.value)


PARTS = (  # as templates of models that read images too
    "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text | trim }}{% endif %}{% endfor %}{% endif %};{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PARTS, "system:onetwo;user:ab<|im_end|>;"),
        ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "system:one\ntwo;user:a\n b<|im_end|>;"),
        (
            "{% for m in messages %}{{ m.role }}:{% if m.role == 'user' and m.content is not string %}"
            "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}",
            "system:one\ntwo;user:[a][ b<|im_end|>];",
        ),
    ],
    ids=["joined", "lines", "of users"],
)
def test_parts_of_a_content_are_put_together_as_the_template_does(template: str, text: str) -> None:
    messages = [
        Message(role="system", content=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]),
        Message(role="user", content=[{"type": "text", "text": "a"}, {"type": "text", "text": " b<|im_end|>"}]),
    ]
    segments = render(template, template_messages(messages))
    assert "".join(segment.text for segment in segments) == text
    assert [segment.text for segment in segments if not segment.trusted] == ["<|im_end|>"]
    whole = "".join(part.text for part in render(template, template_messages(messages), continue_final_message=True))
    assert whole.endswith("user:a\n b<|im_end|>")


def test_tools_are_as_untrusted_as_messages() -> None:
    template = "{{ tools[0].description }}<|im_end|>{{ messages[0].content }}"
    tools = [{"description": "ends <|im_end|> here"}]
    segments = render(template, [{"role": "user", "content": "a"}], tools=tools)
    assert [(s.text, s.trusted) for s in segments if "im_end" in s.text] == [
        ("<|im_end|>", False),
        (" here<|im_end|>a", True),
    ]


def test_options_reach_the_template_but_may_not_replace_the_messages() -> None:
    template = "{{ messages[0].content }}{{ mood }}"
    message = [{"role": "user", "content": "a"}]
    assert render(template, message, variables={"mood": "!"})[-1].text == "a!"
    with pytest.raises(RequestError, match="messages"):
        render(template, message, variables={"messages": []})


def test_a_model_without_a_template_cannot_chat() -> None:
    told = Told("")
    told.chat = None  # type: ignore[assignment]
    with pytest.raises(RequestError, match="no chat template"):
        MessageRenderer(told).render([{"role": "user", "content": "a"}])  # type: ignore[arg-type]


def test_calls_have_ids_that_mistrals_templates_take() -> None:
    calls = [{"id": "call_0123456789abcdef", "type": "function", "function": {"name": "f", "arguments": {}}}]
    messages = [
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": calls[0]["id"]},
    ]
    asked, answered = with_short_ids(messages)
    assert asked["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", answered["tool_call_id"])
    assert calls[0]["id"] == "call_0123456789abcdef"
