"""Training examples: a prompt, the expected continuation and its end; and the format of chats.

`chat` writes exactly what the Jinja template in tokenizer_config.json writes; a test compares them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, TOOL, END = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Case:
    skill: str
    prompt: str  # without <|bos|>
    answer: str
    stop: str = "\n"
    pages: dict[str, str] = field(default_factory=dict)  # what `lookup` answers in this case, beyond the encyclopedia

    @property
    def document(self) -> str:
        return BOS + self.prompt + self.answer + self.stop + EOS


def tool_line(tool: dict) -> str:
    parameters = {name: spec["type"] for name, spec in tool["parameters"]["properties"].items()}
    return json.dumps({"name": tool["name"], "description": tool["description"], "parameters": parameters})


def tool_call(name: str, arguments: dict) -> str:
    return f"{CALL}\n{json.dumps({'name': name, 'arguments': arguments})}\n{CALL_END}"


def chat(turns: list[tuple[str, str]], system: str | None = None, tools: list[dict] = ()) -> str:
    """Write the prompt of a chat, including the assistant's opening. Turns are (role token, text)."""
    text = ""
    blocks = ([system] if system else []) + (["Tools:\n" + "\n".join(map(tool_line, tools))] if tools else [])
    if blocks:
        text += f"{SYSTEM}\n" + "\n\n".join(blocks) + f"{END}\n"
    for role, said in turns:
        text += f"{role}\n{said}{END}\n"
    return text + f"{ASSISTANT}\n"


def chat_case(
    skill: str, turns: list[tuple[str, str]], answer: str, system: str | None = None, tools: list[dict] = ()
) -> Case:
    return Case(skill, chat(turns, system, tools), answer, END)
