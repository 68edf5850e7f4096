"""Tool-call formats of models.

A format says how to parse a call of the model, and which text to write for one, so that only the name and the arguments
are generated. Sources: the chat templates of the models named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial

from ....protocol.config import ToolFormatName
from .calls import STRING, Reader, read_json_calls, read_python_calls
from .readers import (
    DSML,
    INVOKE,
    QWEN3_CODER,
    STEPTML,
    TagGrammar,
    glm_values,
    read_apertus,
    read_deepseek,
    read_gemma,
    read_glm,
    read_internlm,
    read_kimi,
    read_lfm2,
    read_longcat,
    read_mistral,
    read_step3,
)


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """Texts around a model's tool calls, for parsing its output and for writing calls for it.

    Parsing: a block begins with one of `begin_markers`, or is an answer that begins with one of `bare_prefixes`. It
    ends with `end_marker` outside of what `quoted` matches, else with its last call. `inner` are the begin and the end
    of a single call in a block, whose own markers a model may leave out. `unmarked` is a pattern of how a call begins
    without any marker, where that is not JSON; `NAME` stands for the names of tools.

    Writing: `trigger` shows that the model is about to call. `opening` begins with it and precedes the name. Then
    follow `before_arguments`, the arguments and `after_arguments`; `{index}` is the call's number. `next_trigger` and
    `next_opening` do the same for a further call of the answer; `end_of_calls` follows the last one.
    """

    name: ToolFormatName
    begin_markers: tuple[str, ...] = ()
    end_marker: str | None = None
    inner: tuple[str, str] | None = None
    bare_prefixes: tuple[str, ...] = ()
    unmarked: str | None = None
    read: Reader = read_json_calls
    quoted: str = STRING
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
        return self.before_arguments[0] if self.before_arguments[0] in '": \n' else ""

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


_PYTHON = r"(?:\[\s*)?NAME\("


@dataclass(frozen=True)
class _ReadFormat:
    """A format that is only read. Forced calls are written as JSON, which a schema can constrain."""

    name: ToolFormatName
    begin: str
    end: str
    read: Reader
    quoted: str
    inner: tuple[str, str] | None = None
    unmarked: str | None = None


def _tags(name: ToolFormatName, begin: str, end: str, tags: TagGrammar) -> _ReadFormat:
    return _ReadFormat(name, begin, end, tags.read, tags.values, (tags.opening, tags.closing))


def _gemma(name: ToolFormatName, begin: str, end: str, quote: str) -> _ReadFormat:
    read, escaped = partial(read_gemma, quote=quote), re.escape(quote)
    return _ReadFormat(name, begin, end, read, rf"{escaped}.*?(?:{escaped}|\Z)", unmarked=r"call:NAME\{")


_READ = (
    _tags("qwen3_coder", "<tool_call>", "</tool_call>", QWEN3_CODER),
    _tags("seed_oss", "<seed:tool_call>", "</seed:tool_call>", QWEN3_CODER),
    _tags("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", INVOKE),
    _ReadFormat(
        "step3",
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        read_step3,
        STEPTML.values,
        ("<｜tool_call_begin｜>", "<｜tool_call_end｜>"),
    ),
    _tags("deepseek_v32", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", DSML),
    _tags("deepseek_v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", DSML),
    _ReadFormat("glm45", "<tool_call>", "</tool_call>", read_glm, glm_values(), unmarked=r"NAME\s*<arg_key>"),
    _gemma("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
    _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    _ReadFormat("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", read_lfm2, STRING, unmarked=_PYTHON),
    _ReadFormat("olmo3", "<function_calls>", "</function_calls>", read_python_calls, STRING, unmarked=_PYTHON),
)
_HERMES = ToolFormat(
    name="hermes",
    begin_markers=("<tool_call>",),
    end_marker="</tool_call>",
    trigger="<tool_call>",
    opening='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    next_trigger="<tool_call>",
    next_opening='<tool_call>\n{"name": "',
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
    _HERMES,
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
        unmarked=_PYTHON,
        read=read_python_calls,
        trigger='{"name": "',  # arguments of a forced call are JSON, which a schema can constrain
        opening='{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}",
    ),
    ToolFormat(
        name="mistral",
        begin_markers=("[TOOL_CALLS]",),
        read=read_mistral,
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
        read=read_mistral,
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
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        read=read_deepseek,
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
        inner=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        read=read_deepseek,
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
        inner=("<|tool_call_begin|>", "<|tool_call_end|>"),
        read=read_kimi,
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
    replace(
        _GRANITE,
        name="hunyuan_a13b",
        begin_markers=("<tool_calls>",),
        end_marker="</tool_calls>",
        trigger="<tool_calls>",
        opening='<tool_calls>[{"name": "',
        end_of_calls="]</tool_calls>",
    ),
    ToolFormat(
        name="apertus",
        begin_markers=("<|tools_prefix|>",),
        end_marker="<|tools_suffix|>",
        unmarked=r'\[\s*\{\s*"NAME":',
        read=read_apertus,
        trigger="<|tools_prefix|>",
        opening='<|tools_prefix|>[{"',
        before_arguments='": ',
        after_arguments="}",
        next_trigger=", {",
        next_opening=', {"',
        end_of_calls="]<|tools_suffix|>",
    ),
    ToolFormat(
        name="granite_20b_fc",
        begin_markers=("<function_call>",),
        read=read_json_calls,
        trigger="<function_call>",
        opening='<function_call> {"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
        next_trigger="<function_call>",
        next_opening=' <function_call> {"name": "',
    ),
    ToolFormat(
        name="internlm",
        begin_markers=("<|action_start|>",),
        end_marker="<|action_end|>",
        read=read_internlm,
        trigger="<|action_start|>",
        opening='<|action_start|><|plugin|>\n{"name": "',
        before_arguments='", "parameters": ',
        after_arguments="}<|action_end|>",
        next_trigger="<|action_start|>",
        next_opening='<|action_start|><|plugin|>\n{"name": "',
    ),
    replace(
        _HERMES,
        name="longcat",
        begin_markers=("<longcat_tool_call>",),
        end_marker="</longcat_tool_call>",
        unmarked=r"NAME\s*<longcat_arg_key>",
        read=read_longcat,
        quoted=rf"{STRING}|{glm_values('longcat_', 'longcat_tool_call')}",
        trigger="<longcat_tool_call>",
        opening='<longcat_tool_call>\n{"name": "',
        after_arguments="}\n</longcat_tool_call>",
        next_trigger="<longcat_tool_call>",
        next_opening='<longcat_tool_call>\n{"name": "',
    ),
    ToolFormat(
        name="harmony",  # read by ../harmony.py
        trigger="<|channel|>commentary to=functions.",
        opening="<|channel|>commentary to=functions.",
        before_arguments=" <|constrain|>json<|message|>",
        after_arguments="<|call|>",
    ),
    *(
        ToolFormat(
            name=each.name,
            begin_markers=(each.begin,),
            end_marker=each.end,
            inner=each.inner,
            unmarked=each.unmarked,
            read=each.read,
            quoted=each.quoted,
            trigger='{"name": "',
            opening='{"name": "',
            before_arguments='", "arguments": ',
            after_arguments="}",
        )
        for each in _READ
    ),
    ToolFormat(
        name="json",
        bare_prefixes=("{", "[{", "```json"),
        read=read_json_calls,
        trigger='{"name": "',
        opening='{"name": "',
        before_arguments='", "arguments": ',
        after_arguments="}",
    ),
)
FORMATS: dict[str, ToolFormat] = {each.name: each for each in _ALL}
