"""Tool-call formats of models.

A format says how to parse a call of the model, and which text to write for one, so that only the name and the arguments
are generated. Sources: the chat templates of the models named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ....protocol.config import ToolFormatName
from .calls import ToolCall, call_of_texts, read_arguments, read_json_calls, read_python_calls, read_tagged


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """Texts around a model's tool calls, for parsing its output and for writing calls for it.

    Parsing: a block begins with one of `begin_markers`, or is an answer that begins with one of `bare_prefixes`. It
    ends with `end_marker`, or with the answer. `has_texts`: arguments are texts, to which the schema gives types.

    Writing: `trigger` shows that the model is about to call. `opening` begins with it and precedes the name. Then
    follow `before_arguments`, the arguments and `after_arguments`; `{index}` is the call's number. `next_trigger` and
    `next_opening` do the same for a further call of the answer; `end_of_calls` follows the last one.
    """

    name: ToolFormatName
    begin_markers: tuple[str, ...] = ()
    end_marker: str | None = None
    bare_prefixes: tuple[str, ...] = ()
    parse: Callable[[str], list[ToolCall]] = read_json_calls
    has_texts: bool = False
    trigger: str
    opening: str
    before_arguments: str
    after_arguments: str
    next_trigger: str | None = None
    next_opening: str = ""
    end_of_calls: str | None = None

    @property
    def name_terminator(self) -> str:
        """Character that ends a name; "" where a special token does, which is never split."""
        return self.before_arguments[0] if self.before_arguments[0] in '":\n' else ""

    def arguments_opening(self, index: int) -> str:
        """Return the text between the name and the arguments of call `index` of the answer."""
        return self.before_arguments.replace("{index}", str(index))

    @property
    def generated_closing(self) -> str:
        """Part of `after_arguments` left to the model: the brace, often in one token with that of the arguments."""
        return "}" if self.after_arguments.startswith("}") else ""

    @property
    def appended_closing(self) -> str:
        """Part of `after_arguments` that the server appends."""
        return self.after_arguments.removeprefix(self.generated_closing)

    @property
    def has_marker(self) -> bool:
        """Return True if an unambiguous marker begins calls. Then even an unforced call can be constrained."""
        return self.trigger in self.begin_markers


def _read_deepseek(block: str) -> list[ToolCall]:
    """Parse `function<sep>NAME\\n```json\\n{...}\\n```<end>` (V3, R1) or `NAME<sep>{...}<end>` (V3.1), repeated."""
    calls = []
    for part in block.split("<｜tool▁call▁begin｜>"):
        body = part.partition("<｜tool▁call▁end｜>")[0]
        if not body.strip():
            continue
        before, separator, after = body.partition("<｜tool▁sep｜>")
        if not separator:
            raise ValueError("no call")
        name, fence, arguments = after.partition("```json")
        if fence:
            calls.append(ToolCall(name.strip(), read_arguments(arguments.strip().removesuffix("```"))))
        else:
            calls.append(ToolCall(before.strip(), read_arguments(after)))
    return calls


def _read_mistral(block: str) -> list[ToolCall]:
    """Parse a JSON array (v1-v7) or `NAME[ARGS]{...}`, each after its own `[TOOL_CALLS]` (v11 on)."""
    if "[ARGS]" not in block:
        return read_json_calls(block)
    calls = []
    for part in filter(str.strip, block.split("[TOOL_CALLS]")):
        name, _, arguments = part.partition("[ARGS]")
        calls.append(ToolCall(name.partition("[CALL_ID]")[0].strip(), read_arguments(arguments)))
    return calls


def _read_kimi(block: str) -> list[ToolCall]:
    """Parse `functions.NAME:INDEX<|tool_call_argument_begin|>{...}`, each between its begin and end."""
    pairs = read_tagged(block, "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
    return [
        ToolCall(call_id.strip().rpartition(":")[0].removeprefix("functions."), read_arguments(arguments))
        for call_id, arguments in pairs
    ]


def _read_qwen3_coder(block: str) -> list[ToolCall]:
    """Parse `<function=NAME><parameter=KEY>\nVALUE\n</parameter>...</function>`."""
    calls = []
    for name, body in read_tagged(block, "<function=", ">", "</function>"):
        pairs = read_tagged(body, "<parameter=", ">", "</parameter>")
        calls.append(call_of_texts(name, [(key, text.removeprefix("\n").removesuffix("\n")) for key, text in pairs]))
    return calls


def _read_glm(block: str) -> list[ToolCall]:
    """Parse `NAME` and `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>`, repeated."""
    name, key, rest = block.partition("<arg_key>")
    pairs = read_tagged(key + rest, "<arg_key>", "</arg_key>", "</arg_value>")
    values = [(key.strip(), value.lstrip().partition("<arg_value>")) for key, value in pairs]
    if any(before for _, (before, _, _) in values):
        raise ValueError("no call")
    return [call_of_texts(name, [(key, text) for key, (_, _, text) in values])]


def _read_minimax(block: str) -> list[ToolCall]:
    """Parse `<invoke name="NAME"><parameter name="KEY">VALUE</parameter>...</invoke>`, repeated."""
    return [
        call_of_texts(name, read_tagged(body, '<parameter name="', '">', "</parameter>"))
        for name, body in read_tagged(block, '<invoke name="', '">', "</invoke>")
    ]


def _read_fenced(block: str) -> list[ToolCall]:
    text = block.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return read_json_calls(text)


# Formats whose arguments are texts between tags: their name, the tag around calls, their reader.
_TAGGED: tuple[tuple[ToolFormatName, str, Callable[[str], list[ToolCall]]], ...] = (
    ("qwen3_coder", "tool_call", _read_qwen3_coder),
    ("glm45", "tool_call", _read_glm),
    ("minimax_m2", "minimax:tool_call", _read_minimax),
)
_GRANITE = ToolFormat(
    name="granite",
    begin_markers=("<|tool_call|>",),
    trigger="<|tool_call|>",
    opening='<|tool_call|>[{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    next_trigger=", {",
    next_opening=', {"name": "',
    end_of_calls="]",
)
_ALL = (
    ToolFormat(
        name="hermes",
        begin_markers=("<tool_call>",),
        end_marker="</tool_call>",
        trigger="<tool_call>",
        opening='<tool_call>\n{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}\n</tool_call>",
        next_trigger="<tool_call>",
        next_opening='<tool_call>\n{"name": "',
    ),
    ToolFormat(
        name="llama3_json",
        begin_markers=("<|python_tag|>",),
        bare_prefixes=("{", "[{"),
        trigger='{"name": "',
        opening='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
    ),
    ToolFormat(
        name="pythonic",
        begin_markers=("<|python_start|>",),
        end_marker="<|python_end|>",
        bare_prefixes=("[",),
        parse=read_python_calls,
        trigger='{"name": "',  # arguments of a forced call are JSON, which a schema can constrain
        opening='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
    ),
    ToolFormat(
        name="mistral",
        begin_markers=("[TOOL_CALLS]",),
        parse=_read_mistral,
        trigger="[TOOL_CALLS]",
        opening='[TOOL_CALLS][{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        next_trigger=", {",
        next_opening=', {"name": "',
        end_of_calls="]",
    ),
    ToolFormat(
        name="mistral_args",
        begin_markers=("[TOOL_CALLS]",),
        parse=_read_mistral,
        trigger="[TOOL_CALLS]",
        opening="[TOOL_CALLS]",
        before_arguments="[ARGS]",
        after_arguments="",
        next_trigger="[TOOL_CALLS]",
        next_opening="[TOOL_CALLS]",
    ),
    ToolFormat(
        name="deepseek",
        begin_markers=("<｜tool▁calls▁begin｜>",),
        end_marker="<｜tool▁calls▁end｜>",
        parse=_read_deepseek,
        trigger="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        before_arguments="\n```json\n",
        after_arguments="\n```<｜tool▁call▁end｜>",
        next_trigger="<｜tool▁call▁begin｜>",
        next_opening="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        end_of_calls="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek_v31",
        begin_markers=("<｜tool▁calls▁begin｜>",),
        end_marker="<｜tool▁calls▁end｜>",
        parse=_read_deepseek,
        trigger="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        before_arguments="<｜tool▁sep｜>",
        after_arguments="<｜tool▁call▁end｜>",
        next_trigger="<｜tool▁call▁begin｜>",
        next_opening="<｜tool▁call▁begin｜>",
        end_of_calls="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="kimi_k2",
        begin_markers=("<|tool_calls_section_begin|>",),
        end_marker="<|tool_calls_section_end|>",
        parse=_read_kimi,
        trigger="<|tool_calls_section_begin|>",
        opening="<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        before_arguments=":{index}<|tool_call_argument_begin|>",
        after_arguments="<|tool_call_end|>",
        next_trigger="<|tool_call_begin|>",
        next_opening="<|tool_call_begin|>functions.",
        end_of_calls="<|tool_calls_section_end|>",
    ),
    _GRANITE,
    replace(_GRANITE, name="phi4_mini", end_marker="<|/tool_call|>", end_of_calls="]<|/tool_call|>"),
    *(
        ToolFormat(
            name=name,
            begin_markers=(f"<{tag}>",),
            end_marker=f"</{tag}>",
            parse=parse,
            has_texts=True,
            trigger='{"name": "',  # arguments of a forced call are JSON, which a schema can constrain
            opening='{"name": "',
            before_arguments='", "arguments": ',
            after_arguments="}",
        )
        for name, tag, parse in _TAGGED
    ),
    ToolFormat(
        name="json",
        bare_prefixes=("{", "[{", "```json"),
        parse=_read_fenced,
        trigger='{"name": "',
        opening='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
    ),
)
FORMATS: dict[str, ToolFormat] = {each.name: each for each in _ALL}
