"""How often an agent of two tools ends with an answer from a tool's result, by the form of its calls.

    python -P bench/agents/tool_answers.py MODEL [--ways json,required] [--fresh] [--show] [--out FILE]

Each of the 20 questions needs one call, whose result is a value that nobody can guess. A question counts if the right
tool was called with the right argument, and the agent ended with an answer that has the value. Greedy, so a model gives
the same figures again. `--fresh` asks 20 others, which nobody looked at while the agent was written.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Annotated, Any, NamedTuple

import typer

import ramiform
from ramiform import AgentResult, ProgramState, system
from ramiform.bench.harness import Out, report, table


class Question(NamedTuple):
    text: str
    tool: str
    argument: str
    value: str  # of the result, which the answer has to have


TEMPERATURES = {"Oslo": 23, "Paris": 31, "Lima": 7, "Cairo": 44, "Tokyo": 19, "Rome": 38, "Quito": 12, "Delhi": 46}
TEMPERATURES |= {"Bergen": 27, "Boston": 33}
FRESH_TEMPERATURES = {"Madrid": 29, "Nairobi": 24, "Sydney": 16, "Chicago": 41, "Vienna": 34, "Seoul": 13, "Lagos": 36}
FRESH_TEMPERATURES |= {"Dublin": 17, "Athens": 39, "Havana": 28}
PRICES = {"apples": 417, "bread": 286, "milk": 193, "cheese": 952, "rice": 364, "coffee": 877, "butter": 541}
PRICES |= {"salt": 128, "honey": 735, "flour": 269}
FRESH_PRICES = {
    "sugar": 158,
    "tea": 643,
    "eggs": 329,
    "pasta": 214,
    "olives": 477,
    "yogurt": 182,
    "jam": 398,
    "oats": 251,
}
FRESH_PRICES |= {"lemons": 166, "tofu": 523}
WEATHER = ["What is the temperature in {}?", "How warm is it in {} right now?", "Tell me the weather in {}."]
PRICE = ["What is the price of {}?", "How much does {} cost?", "Look up the price of {}, please."]
FRESH_WEATHER = [
    "How hot is it in {}?",
    "Is it cold in {}? Give me the temperature.",
    "What's the weather like in {} today?",
]
FRESH_PRICE = ["I want to buy {}. What do I pay?", "Check the price of {}.", "{}: how much is it?"]


def questions_of(cities: dict[str, int], items: dict[str, int], weather: list[str], price: list[str]) -> list[Question]:
    asked = [(weather, "get_weather", cities), (price, "get_price", items)]
    return [
        Question(forms[index % 3].format(name), tool, name, str(value))
        for forms, tool, values in asked
        for index, (name, value) in enumerate(values.items())
    ]


QUESTIONS = questions_of(TEMPERATURES, PRICES, WEATHER, PRICE)
FRESH_QUESTIONS = questions_of(FRESH_TEMPERATURES, FRESH_PRICES, FRESH_WEATHER, FRESH_PRICE)
WAYS: dict[str, dict[str, Any]] = {
    "hermes": {},
    "json": {"call_format": "json"},
    "required": {"tool_choice": "required"},
    "json-required": {"call_format": "json", "tool_choice": "required"},
}


def get_weather(city: str) -> dict[str, object]:
    """Get the temperature in a city, in degrees Celsius"""
    return {"city": city, "temperature": (TEMPERATURES | FRESH_TEMPERATURES).get(city, "unknown city")}


def get_price(item: str) -> dict[str, object]:
    """Get the price of an item in the shop, in cents"""
    return {"item": item, "price_in_cents": (PRICES | FRESH_PRICES).get(item.lower(), "unknown item")}


@ramiform.function
def ask(s: ProgramState, question: str, options: dict[str, Any]) -> AgentResult:
    s += system("You are a helpful assistant.", tools=[get_weather, get_price])
    return s.agent([get_weather, get_price], question, max_tokens=64, temperature=0, **options)


def is_called(question: Question, result: AgentResult) -> bool:
    """Return whether the right tool was called with the right argument."""
    return any(
        call.name == question.tool and question.argument in (call.arguments or {}).values() for call in result.calls
    )


def is_answered(question: Question, result: AgentResult) -> bool:
    """Return whether the agent ended with an answer from the tool's result."""
    has_value = re.search(rf"\b{question.value}\b", result.answer) is not None
    return is_called(question, result) and result.stopped_by == "answer" and has_value


def row_of(way: str, questions: list[Question], results: list[AgentResult], seconds: float) -> dict[str, Any]:
    recognised = Counter(call.recognised for result in results for call in result.calls if call.name is not None)
    return {
        "way": way,
        "answered": sum(map(is_answered, questions, results)),
        "right call": sum(map(is_called, questions, results)),
        "no call": sum(result.hint is not None for result in results),
        "invalid calls": sum(call.name is None for result in results for call in result.calls),
        "calls found by": ", ".join(f"{how} {count}" for how, count in recognised.items()) or "-",
        "turns": sum(result.steps for result in results),
        "s": round(seconds, 1),
    }


def main(
    model: Annotated[str, typer.Argument(help="path of a model, or its hub id")],
    ways: Annotated[str, typer.Option(help=f"of {', '.join(WAYS)}")] = ",".join(WAYS),
    fresh: Annotated[bool, typer.Option("--fresh", help="ask the 20 other questions")] = False,
    show: Annotated[bool, typer.Option("--show", help="print questions that were not answered")] = False,
    out: Out = None,
) -> None:
    rows, questions = [], FRESH_QUESTIONS if fresh else QUESTIONS
    with ramiform.Runtime(model) as runtime:
        for way in ways.split(","):
            began = time.perf_counter()
            arguments = [{"question": one.text, "options": WAYS[way]} for one in questions]
            states = ask.run_batch(arguments, backend=runtime)
            results = [state.ret_value for state in states]
            rows.append(row_of(way, questions, results, time.perf_counter() - began))
            print(rows[-1], flush=True)
            for question, state, result in zip(questions, states, results, strict=True):
                if show and not is_answered(question, result):
                    print(f"--- {way}: {question.text} ({result.stopped_by})")
                    print(*(f"{one['role']}: {one['content']}" for one in state.messages()[2:]), sep="\n", flush=True)
    report(f"Answers of {len(questions)} from a tool's result", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
