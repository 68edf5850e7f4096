"""Chat templates. Judge: transformers' `apply_chat_template`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.tokenizer import ChatTemplate, TokenizerError
from ramiform.runtime.tokenizer.chat_template import load_chat_template

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>

Today: {{ date_string }}
{{ system_message }}<|eot_id|>
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}"""

GEMMA = """{{ bos_token }}
{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f<&>", "description": "é 東", "parameters": {"type": "object", "properties": {}}},
    }
]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi <b>'you'</b> & é 東京 {{ 1 }}"}],
    [
        {"role": "user", "content": "  one\n"},
        {"role": "assistant", "content": "two "},
        {"role": "user", "content": "three"},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}],
]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}


def judge(template: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    library = PreTrainedTokenizerFast(
        tokenizer_object=Library(models.WordLevel({"<s>": 0, "</s>": 1, "<u>": 2}, unk_token="<u>")), **NAMES
    )
    return str(library.apply_chat_template(messages, chat_template=template, tokenize=False, **kwargs))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CONVERSATIONS)
@pytest.mark.parametrize(
    "kwargs", [{}, {"add_generation_prompt": True, "enable_thinking": False}, {"tools": TOOLS, "date_string": "today"}]
)
def test_templates_render_as_transformers_renders_them(
    name: str, messages: list[dict[str, Any]], kwargs: dict[str, Any]
) -> None:
    template = ChatTemplate(TEMPLATES[name], NAMES)
    try:
        expected, refusal = judge(TEMPLATES[name], messages, **kwargs), None
    except jinja2.TemplateError as error:  # the template's raise_exception
        expected, refusal = None, str(error)
    if refusal is None:
        assert template.render(messages, **kwargs) == expected
        return
    with pytest.raises(RequestError) as caught:
        template.render(messages, **kwargs)
    assert refusal in str(caught.value)
    assert caught.value.param == "messages"


def test_a_message_that_the_template_cannot_take_is_the_clients_mistake() -> None:
    template = ChatTemplate(CHATML, NAMES)
    for messages in ([], [{"role": "user"}], [{"role": 3, "content": None}]):
        with pytest.raises(RequestError) as caught:
            template.render(messages)
        assert caught.value.param == "messages"


def test_the_sandbox_keeps_templates_from_python() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(RequestError):
            ChatTemplate(source, {}).render([])


def test_endless_output_is_refused() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}"
    with pytest.raises(RequestError, match="exceeds its limit of output or CPU time"):
        ChatTemplate(source, {}).render([])


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in [1] recursive %}{% for b in range(99) %}{{ loop([1] * 99) if b > 200 }}{% endfor %}"
        "{% if loop.depth < 50 %}{{ loop(range(9)) }}{% endif %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set b = m(n - 1) %}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
    ids=["loops", "recursive loop", "macros"],
)
def test_a_template_that_writes_nothing_for_ever_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramiform.runtime.tokenizer.chat_template.MAX_CPU_SECONDS", 0.2)
    with pytest.raises(RequestError, match="limit"):
        ChatTemplate(template, {}).render([{"role": "user", "content": "a"}])


def test_a_template_cannot_reach_its_deadline() -> None:
    with pytest.raises(TokenizerError):
        ChatTemplate("{{ none | deadline of the rendering }}", {})
    text = ChatTemplate("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}", {})
    assert text.render([{"role": "user"}, {"role": "user"}]) == "1/2False 2/2True "


def test_a_template_that_is_no_jinja_is_refused_when_loaded() -> None:
    with pytest.raises(TokenizerError):
        ChatTemplate("{% if %}", {})


def test_templates_are_found_where_checkpoints_keep_them(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path, None, {}) is None
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    template = load_chat_template(tmp_path, named, {})
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[]) == "tools"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert load_chat_template(tmp_path, named, {}).render([]) == "json"  # type: ignore[union-attr]
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    assert load_chat_template(tmp_path, named, {"bos_token": "<s>"}).render([]) == "file <s>"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 1000 + "1" + ")" * 1000 + " }}", "{% for a in b %}" * 60 + "{% endfor %}" * 60]
)
def test_a_template_that_is_nested_too_deep_is_refused(source: str) -> None:
    with pytest.raises(TokenizerError, match="the chat template cannot be read"):
        ChatTemplate(source, {})
