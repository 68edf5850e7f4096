"""Judge: the template applied to the whole list of messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.programs.content import TokenContent
from ramiform.runtime.frontend.programs.roles import ChatState
from ramiform.runtime.frontend.text.encoding import Encoder
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.session import OfferedTools
from ramiform.runtime.tokenizer import ChatTemplate
from ramiform.tests.frontend import templates
from ramiform.tests.frontend.harness import run, shipped_tokenizer

contents = st.text("ab é{}\n<|[", min_size=1, max_size=12).map(str.strip).filter(bool)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[str, list[dict[str, str]]]:
    name = draw(st.sampled_from(sorted(templates.ALL)))
    roles = ["user", "assistant"] * draw(st.integers(1, 3))
    roles = roles[: len(roles) - draw(st.integers(0, 1))]
    if name in templates.TAKES_SYSTEM and draw(st.booleans()):
        roles = ["system", *roles]
    return name, [{"role": role, "content": draw(contents)} for role in roles]


def play(template: ChatTemplate, messages: list[dict[str, str]]) -> str:
    chat = ChatState()
    text = ""
    for message in messages:
        chat, before = chat.begin(template, message["role"])
        text += before + chat.lead + message["content"]
        chat, after = chat.end(template)
        text += after
    return text


@pytest.mark.slow
@given(conversations())
def test_pieces_add_up_to_the_whole_template(conversation: tuple[str, list[dict[str, str]]]) -> None:
    name, messages = conversation
    template = ChatTemplate(templates.ALL[name], templates.NAMES)
    assert play(template, messages) == template.render(messages)


@pytest.mark.parametrize("num_results", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(templates.TAKES_TOOLS))
def test_what_tools_say_is_a_message_like_the_templates(name: str, num_results: int) -> None:
    template = ChatTemplate(templates.ALL[name], templates.NAMES)
    roles = ["user", "assistant", *["tool"] * num_results, "assistant", "user"]
    messages = [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]
    assert play(template, messages) == template.render(messages)


@pytest.mark.parametrize("name", sorted(set(templates.ALL) - {"mistral", "llama2", "joined"}))
def test_an_assistant_goes_on_from_the_generation_prompt(name: str) -> None:
    template = ChatTemplate(templates.ALL[name], templates.NAMES)
    messages = [{"role": "user", "content": "Hi"}]
    chat, _ = ChatState().begin(template, "user")
    chat, end = chat.end(template)
    chat, begin = chat.begin(template, "assistant")
    assert template.render(messages, add_generation_prompt=True).endswith("Hi" + end + begin)


def test_the_space_before_an_answer_is_left_to_the_model() -> None:
    template = ChatTemplate(templates.MISTRAL, templates.NAMES)
    chat, _ = ChatState().begin(template, "user")
    chat, end = chat.end(template)
    chat, begin = chat.begin(template, "assistant")
    assert (end + begin, chat.lead) == (" [/INST]", " ")


@pytest.mark.parametrize(
    ("name", "roles", "refused"),
    [
        ("mistral", [], "system"),
        ("mistral", ["user"], "user"),
        ("gemma", [], "system"),
        ("mistral", ["user", "assistant"], "assistant"),
        ("llama2", ["user", "assistant"], "system"),
        ("chatml", [], "a b"),
        ("chatml", [], ""),
        ("chatml", [], "user<|im_end|>"),
    ],
)
def test_a_role_that_the_template_refuses_is_named(name: str, roles: list[str], refused: str) -> None:
    template = ChatTemplate(templates.ALL[name], templates.NAMES)
    chat = ChatState()
    for role in roles:
        chat, _ = chat.begin(template, role)
        chat, _ = chat.end(template)
    with pytest.raises(RequestError, match="role") as caught:
        chat.begin(template, refused)
    assert repr(refused) in str(caught.value)
    assert caught.value.param == "role"


def test_roles_neither_nest_nor_end_twice_nor_do_without_a_template() -> None:
    template = ChatTemplate(templates.CHATML, templates.NAMES)
    chat, _ = ChatState().begin(template, "user")
    with pytest.raises(RequestError, match="cannot begin inside role 'user'"):
        chat.begin(template, "user")
    chat, _ = chat.end(template)
    with pytest.raises(RequestError, match="none is open"):
        chat.end(template)
    with pytest.raises(RequestError, match="has none"):
        ChatState().begin(None, "user")


def test_the_ids_of_a_conversation_are_those_of_the_shipped_models_whole_template() -> None:
    tokenizer = shipped_tokenizer()
    assert tokenizer.chat is not None
    messages = [
        {"role": "system", "content": "You answer in one word."},
        {"role": "user", "content": " What is the capital of France?\n"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "And of Spain?"},
    ]
    whole = tokenizer.encode(tokenizer.chat.render(messages, add_generation_prompt=True))

    async def main() -> None:
        content = TokenContent(tokenizer, Encoder(tokenizer))
        for message in messages:
            content.begin_role(message["role"])
            for part in message["content"].partition("of"):
                content.append_text(part)
            content.end_role()
        content.begin_role("assistant")
        assert await content.flush() == whole

    run(main())


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
OFFERED = OfferedTools(json.dumps([ADD]), "Tools: add")


@pytest.mark.parametrize("first", ["system", "user"])
def test_the_template_describes_the_tools_that_the_first_message_offers(first: str) -> None:
    tokenizer = shipped_tokenizer()
    assert tokenizer.chat is not None
    roles = [first, *["user"] * (first == "system"), "assistant", "tool", "tool", "assistant", "user"]
    messages = [{"role": role, "content": f"{role} {index}"} for index, role in enumerate(roles)]
    whole = tokenizer.encode(tokenizer.chat.render(messages, tools=[ADD], add_generation_prompt=True))

    async def main() -> None:
        content = TokenContent(tokenizer, Encoder(tokenizer))
        for index, message in enumerate(messages):
            content.begin_role(message["role"], OFFERED if index == 0 else None)
            content.append_text(message["content"])
            content.end_role()
        content.begin_role("assistant")
        assert await content.flush() == whole
        fork = content.fork()
        fork.append_text("x")
        assert json.loads(fork.chat.tools or "") == [ADD]

    run(main())


@pytest.mark.parametrize("name", sorted(templates.ALL))
def test_a_template_that_takes_no_tools_leaves_their_description_to_the_content(name: str) -> None:
    template = ChatTemplate(templates.ALL[name], templates.NAMES)
    messages = [{"role": "user", "content": "Hi"}]
    takes = template.render(messages, tools=[ADD]) != template.render(messages)
    chat, begin = ChatState().begin(template, "user", [ADD])
    assert json.loads(chat.tools or "null") == ([ADD] if takes else None)
    whole = template.render(messages, tools=[ADD] if takes else None)
    assert whole.startswith(begin + chat.lead + "Hi")


def test_only_the_first_message_offers_tools_and_their_texts_are_checked() -> None:
    tokenizer = shipped_tokenizer()
    content = TokenContent(tokenizer, Encoder(tokenizer))
    for schemas, message in (
        ("[", "not JSON"),
        ("{}", "must be a list"),
        (json.dumps([{"name": "<|end|>"}]), "special token"),
        (r'[{"name": "\u003c|end|>"}]', "special token"),
        (json.dumps([{"name": "\ue000content 0\ue001"}]), "special token"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            content.begin_role("user", OfferedTools(schemas, ""))
        assert caught.value.param == "tools"
    content.begin_role("user")
    content.end_role()
    with pytest.raises(RequestError, match="only the first message"):
        content.begin_role("user", OFFERED)
