"""The formats in which models were taught to call tools.

A format says how to read a call that the model wrote, and which text to write for it so that only the name and the
arguments are left to generate. Sources: the chat templates of the models named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .calls import ToolCall, read_arguments, read_json_calls, read_python_calls

FormatName = Literal["hermes", "llama3_json", "pythonic", "mistral", "mistral_args", "deepseek", "deepseek_v31", "json"]


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """Reading: a block goes from one of `begins` to `end`, or to the end of the answer when `end` is None. Without a
    marker a block is an answer that begins with one of `starts`.

    Writing: `trigger` is what shows that the model is about to call; `opening` begins with it and leads to the name,
    `to_arguments` follows the name, `closing` the arguments. After that `again`, if there is one, opens another call in
    the same answer as `trigger` does, with `opening_again`; `over` says that there is none.
    """

    name: FormatName
    begins: tuple[str, ...] = ()
    end: str | None = None
    starts: tuple[str, ...] = ()
    read: Callable[[str], list[ToolCall]] = read_json_calls
    trigger: str
    opening: str
    to_arguments: str
    closing: str
    again: str | None = None
    opening_again: str = ""
    over: str | None = None

    @property
    def name_end(self) -> str:
        """The text that ends a name; none where a special token does, of which there are no parts."""
        return self.to_arguments[0] if self.to_arguments[0] in '"\n' else ""

    @property
    def brace(self) -> str:
        """What of `closing` is written by the model: the brace after the arguments', which are often one token."""
        return "}" if self.closing.startswith("}") else ""

    @property
    def rest(self) -> str:
        """What of `closing` is not."""
        return self.closing.removeprefix(self.brace)

    @property
    def is_marked(self) -> bool:
        """Whether calls begin with a mark that means nothing else: then even a call that nobody forced can be held to
        its schema from there on."""
        return self.trigger in self.begins


def _read_deepseek(block: str) -> list[ToolCall]:
    """`function<sep>NAME\\n```json\\n{...}\\n```<end>` (V3, R1) or `NAME<sep>{...}<end>` (V3.1), one after another."""
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
    """A JSON array (v1-v7) or `NAME[ARGS]{...}`, each after its own `[TOOL_CALLS]` (v11 on)."""
    if "[ARGS]" not in block:
        return read_json_calls(block)
    calls = []
    for part in filter(str.strip, block.split("[TOOL_CALLS]")):
        name, _, arguments = part.partition("[ARGS]")
        calls.append(ToolCall(name.partition("[CALL_ID]")[0].strip(), read_arguments(arguments)))
    return calls


def _read_fenced(block: str) -> list[ToolCall]:
    text = block.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return read_json_calls(text)


_ALL = (
    ToolFormat(
        name="hermes",
        begins=("<tool_call>",),
        end="</tool_call>",
        trigger="<tool_call>",
        opening='<tool_call>\n{"name": "',
        to_arguments='", "arguments": ',
        closing="}\n</tool_call>",
        again="<tool_call>",
        opening_again='<tool_call>\n{"name": "',
    ),
    ToolFormat(
        name="llama3_json",
        begins=("<|python_tag|>",),
        starts=("{", "[{"),
        trigger='{"name": "',
        opening='{"name": "',
        to_arguments='", "parameters": ',
        closing="}",
    ),
    ToolFormat(
        name="pythonic",
        begins=("<|python_start|>",),
        end="<|python_end|>",
        starts=("[",),
        read=read_python_calls,
        trigger='{"name": "',  # a forced call's arguments are JSON: that is what a schema can constrain
        opening='{"name": "',
        to_arguments='", "parameters": ',
        closing="}",
    ),
    ToolFormat(
        name="mistral",
        begins=("[TOOL_CALLS]",),
        read=_read_mistral,
        trigger="[TOOL_CALLS]",
        opening='[TOOL_CALLS][{"name": "',
        to_arguments='", "arguments": ',
        closing="}",
        again=", {",
        opening_again=', {"name": "',
        over="]",
    ),
    ToolFormat(
        name="mistral_args",
        begins=("[TOOL_CALLS]",),
        read=_read_mistral,
        trigger="[TOOL_CALLS]",
        opening="[TOOL_CALLS]",
        to_arguments="[ARGS]",
        closing="",
        again="[TOOL_CALLS]",
        opening_again="[TOOL_CALLS]",
    ),
    ToolFormat(
        name="deepseek",
        begins=("<｜tool▁calls▁begin｜>",),
        end="<｜tool▁calls▁end｜>",
        read=_read_deepseek,
        trigger="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        to_arguments="\n```json\n",
        closing="\n```<｜tool▁call▁end｜>",
        again="<｜tool▁call▁begin｜>",
        opening_again="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        over="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek_v31",
        begins=("<｜tool▁calls▁begin｜>",),
        end="<｜tool▁calls▁end｜>",
        read=_read_deepseek,
        trigger="<｜tool▁calls▁begin｜>",
        opening="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        to_arguments="<｜tool▁sep｜>",
        closing="<｜tool▁call▁end｜>",
        again="<｜tool▁call▁begin｜>",
        opening_again="<｜tool▁call▁begin｜>",
        over="<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="json",
        starts=("{", "[{", "```json"),
        read=_read_fenced,
        trigger='{"name": "',
        opening='{"name": "',
        to_arguments='", "arguments": ',
        closing="}",
    ),
)
FORMATS: dict[str, ToolFormat] = {each.name: each for each in _ALL}
