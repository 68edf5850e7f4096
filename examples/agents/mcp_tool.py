"""Let an agent use the tools of an MCP server, which this file runs as a process of its own.

    ramiform run examples/agents/mcp_tool.py ["What is 12 plus 30?" ...]

`python mcp_tool.py serve` is the server, written with the official package `mcp` (the extra `mcp`). Any other server's
command, or its URL, can stand in place of it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import ramiform
from ramiform import AgentResult, McpTools, ProgramState, system

QUESTIONS = ["What is 37 times 12?", "Add 250 and 78."]


def serve() -> None:
    """Serve two tools over standard input and output until the client is gone."""
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("calculator", log_level="WARNING")

    @server.tool()
    def add(a: int, b: int) -> dict[str, int]:
        """Add two numbers"""
        return {"result": a + b}

    @server.tool()
    def multiply(a: int, b: int) -> dict[str, int]:
        """Multiply two numbers"""
        return {"result": a * b}

    server.run()


@ramiform.function
def ask(s: ProgramState, tools: McpTools, question: str) -> AgentResult:
    s += system("You are a helpful assistant.", tools=tools)
    return s.agent(tools, question, max_steps=3)


def main(questions: Sequence[str]) -> None:
    with ramiform.mcp([sys.executable, str(Path(__file__).resolve()), "serve"]) as tools:
        print(f"tools of the server: {', '.join(tool.name for tool in tools)}")
        states = ask.run_batch([{"tools": tools, "question": question} for question in questions], temperature=0)
        for question, state in zip(questions, states, strict=True):
            for call in state.ret_value.calls:
                print(f"{question}\n  {call.name}{call.arguments} -> {call.text}")
            print(f"  {state.ret_value.answer}")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    else:
        main(sys.argv[1:] or QUESTIONS)
