"""Answer a question with tools: calls are constrained by the functions' signatures."""

import json
import sys

from tasks import SUM, get_weather, multiply

import ramiform
from ramiform import ProgramState, system

TOOLS = [get_weather, multiply]


@ramiform.function
def agent(s: ProgramState, question: str) -> str:
    s += system("You are a helpful assistant.", tools=TOOLS)
    return s.agent(TOOLS, question).answer


ramiform.set_default_backend(ramiform.HttpRuntime(sys.argv[1]))
print(json.dumps(agent.run(SUM, temperature=0).ret_value))
