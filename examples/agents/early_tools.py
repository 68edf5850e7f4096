"""Let slow tools begin early: as soon as their arguments are written, and where earlier runs let one expect the call.

    ramiform run examples/agents/early_tools.py

A pure tool begins while the model still writes the rest of its turn. With `speculate=True` it also begins on arguments
that earlier runs let the agent expect. Answers are the same; only the time differs.
"""

import asyncio
from typing import Any

import ramiform
from ramiform import AgentResult, ProgramState, system

CITIES = ["Oslo", "Paris", "Cairo", "Oslo"]
calls: list[str] = []


async def get_weather(city: str) -> dict[str, object]:
    """Get the weather of a city"""
    calls.append(city)
    await asyncio.sleep(0.05)  # as a request to a weather service takes
    return {"weather": "snowy" if city == "Oslo" else "sunny", "temperature": {"Oslo": 4, "Cairo": 33}.get(city, 15)}


@ramiform.function
async def ask(s: ProgramState, city: str, tools: list[Any]) -> AgentResult:
    s += system("You are a helpful assistant.", tools=tools)
    return await s.agent_async(tools, f"What is the weather in {city}?", temperature=0)


if __name__ == "__main__":
    plain = [get_weather]
    early = [ramiform.tool(get_weather, pure=True, speculate=True)]
    for city in CITIES:
        answers = [ask.run(city, tools, trace=True) for tools in (plain, early)]
        assert answers[0].text() == answers[1].text()
        saved = answers[1].trace.saved
        print(f"{city}: {answers[1].ret_value.answer} ({1000 * saved:.1f} ms saved by the early tool)")
    print(f"{len(calls)} calls for {2 * len(CITIES)} questions; the texts with and without early tools are the same")
