"""Let an agent answer a chat with its tools: it calls those that it needs, reads their results, and answers.

    ramiform run examples/agents/agent.py ["What is 12 plus 30?" ...]

The chat template describes the tools, the grammar holds calls to their signatures, and the calls of one turn run at the
same time. Results of a pure tool are kept, so that equal calls are made once.
"""

import json
import sys
from collections.abc import Callable, Sequence

from transcript import show

import ramiform
from ramiform import AgentResult, ProgramState, system

WEATHER = {"Paris": ("sunny", 21), "Oslo": ("snowy", 4), "Cairo": ("sunny", 33)}
QUESTIONS = ["What is the weather in Oslo?", "What is 37 times 12?", "Add 250 and 78.", "Set a timer for 25 minutes.",
             "Thank you!"]  # fmt: skip


async def get_weather(city: str) -> str:
    """Get the weather of a city"""
    weather, temperature = WEATHER[city]  # of another city: the model is told of the error
    return json.dumps({"weather": weather, "temperature": temperature})


@ramiform.tool(pure=True)
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers"""
    return {"result": a + b}


@ramiform.tool(pure=True)
def multiply(a: int, b: int) -> dict[str, int]:
    """Multiply two numbers"""
    return {"result": a * b}


def set_timer(minutes: int) -> dict[str, str]:
    """Set a timer"""
    return {"status": "ok"}


TOOLS: list[Callable[..., object]] = [get_weather, add, multiply, set_timer]


@ramiform.function
def chat(s: ProgramState, questions: Sequence[str]) -> list[AgentResult]:
    s += system("You are a helpful assistant.", tools=TOOLS)
    return [s.agent(TOOLS, question, max_steps=4) for question in questions]


if __name__ == "__main__":
    questions = sys.argv[1:] or QUESTIONS
    state = chat.run(questions, temperature=0)
    show(state)
    for question, result in zip(questions, state.ret_value, strict=True):
        calls = [f"{call.name}({', '.join(map(repr, (call.arguments or {}).values()))})" for call in result.calls]
        print(f"{' '.join([question, *calls])}\n  {result.answer} ({result.stopped_by} after {result.steps} steps)")
