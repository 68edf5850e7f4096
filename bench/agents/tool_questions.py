"""Tool questions to a real model: which of its answers are read as the calls that were meant.

    python -P bench/agents/tool_questions.py MODEL [--out FILE.md]

The questions, and hand labels of the answers of Qwen2.5-Coder-0.5B-Instruct (Q4_K_M), are those of
tests/frontend/chat/tool_questions.json. Every question is asked with `tool_choice: auto` at temperature 0, three times:
whole, as a stream, and whole with `tool_calls: "strict"`. An answer that differs from the labelled one is not judged.
A label says what the text means: a call, or none, also where the question needed another one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import ramiform
from ramiform.bench.harness import Out, report, table

LABELLED = Path(__file__).parents[2] / "tests/frontend/chat/tool_questions.json"
Calls = list[list[Any]]


def ask(engine: ramiform.Engine, question: str, tools: list[dict[str, Any]], **fields: Any) -> tuple[str, Calls]:
    """Return the text and the calls of an answer."""
    messages = [{"role": "user", "content": question}]
    answer = engine.chat(messages, tools=tools, temperature=0, max_tokens=200, **fields)
    message = answer["choices"][0]["message"]
    return message["content"] or "", _calls(message.get("tool_calls") or [])


def ask_for_stream(engine: ramiform.Engine, question: str, tools: list[dict[str, Any]]) -> tuple[str, Calls]:
    """Do as `ask`, by a stream."""
    messages = [{"role": "user", "content": question}]
    text, calls = "", []
    for chunk in engine.chat(messages, tools=tools, temperature=0, max_tokens=200, stream=True):
        for choice in chunk["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or []:
                if "id" in call:
                    calls.append({"function": {"name": call["function"]["name"], "arguments": ""}})
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return text, _calls(calls)


def _calls(calls: list[dict[str, Any]]) -> Calls:
    return [[call["function"]["name"], json.loads(call["function"]["arguments"])] for call in calls]


def main(model: Annotated[str, typer.Argument(help="a GGUF file or a checkpoint")], out: Out = None) -> None:
    labelled = json.loads(LABELLED.read_text("utf-8"))
    tools = {tool["function"]["name"]: tool for tool in labelled["tools"]}
    rows: list[dict[str, Any]] = []
    with ramiform.Engine(model) as engine:
        for one in labelled["answers"]:
            offered = [tools[name] for name in one["tools"]]
            raw, marked = ask(engine, one["question"], offered, tool_calls="strict")
            whole, streamed = ask(engine, one["question"], offered), ask_for_stream(engine, one["question"], offered)
            rows.append(
                {
                    "same": raw == one["answer"],
                    "meant": one["calls"],
                    "strict": marked,
                    "lenient": whole[1],
                    "stream": whole == streamed,
                }
            )
            print(f"{one['question']!r}: {raw!r} -> {whole[1]}", flush=True)
    judged = [row for row in rows if row["same"]]
    shown = []
    for reading in ("strict", "lenient"):
        meant = [row for row in judged if row["meant"]]
        read = sum(row[reading] == row["meant"] for row in meant)
        shown.append(
            {
                "tool_calls": reading,
                "questions": len(rows),
                "answers as labelled": len(judged),
                "calls meant": len(meant),
                "read as meant": read,
                "recall": f"{read / max(1, len(meant)):.2f}",
                "false calls": sum(bool(row[reading]) for row in judged if not row["meant"]),
                "stream equals whole": sum(row["stream"] for row in rows) if reading == "lenient" else "",
            }
        )
    report("Tool questions", table(shown), out=out)


if __name__ == "__main__":
    typer.run(main)
