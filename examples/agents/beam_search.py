"""Search over derivations: a beam follows the likeliest steps, and a vote compares the answers of whole derivations.

    ramiform run examples/agents/beam_search.py

A step is a thought and an action of a small ReAct agent, with the calculator's answer. At a high temperature a
single sample often goes wrong, and never recovers. Searches stop the branches that lose: the beam after every step, the
vote as soon as the branches that still run cannot change it.
"""

import re
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, Vote, gen

HEADER = "Answer the question in steps. Use calculate(expression) for arithmetic and finish[answer] to end.\n\n"
ACTION = r" (calculate\(\d{1,5} [-+*] \d{1,5}\)|finish\[\d{1,7}\])"
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
STEPS, NUM_VOTERS = 3, 9
QUESTIONS = {
    "Ada has 47 boxes with 38 books each. How many books are there?": 47 * 38,
    "Tom has 61 coins, buys 24 more and then gets 7 times as many. How many coins does Tom have?": (61 + 24) * 7,
    "What is 251 plus 138 minus 77?": 251 + 138 - 77,
    "Mia fills 14 bags. In each bag there are 23 red and 31 blue stones. How many stones are there?": 14 * (23 + 31),
}


def step(s: ProgramState) -> None:
    """Generate the next thought and action, and append what the calculator says; nothing after the answer."""
    if "answer" in s:
        return
    s["number"] = number = s["number"] + 1 if "number" in s else 1
    s += f"Thought {number}:" + gen("thought", max_tokens=40, stop="\n")
    s += f"\nAction {number}:{gen('action', max_tokens=40, regex=ACTION)}\n"
    if found := re.fullmatch(r" finish\[(\d+)\]", s["action"]):
        s["answer"] = int(found[1])
    else:
        left, sign, right = s["action"].removeprefix(" calculate(").removesuffix(")").split()
        s += f"Observation {number}: {OPERATORS[sign](int(left), int(right))}\n"


def derive(s: ProgramState) -> Any:
    """Return the answer after the steps allowed; None if there is none."""
    for _ in range(STEPS):
        step(s)
    return s.variables().get("answer")


@ramiform.function
def sample(s: ProgramState, question: str) -> Any:
    s += f"{HEADER}Question: {question}\n"
    return derive(s)


@ramiform.function
def search(s: ProgramState, question: str) -> Any:
    s += f"{HEADER}Question: {question}\n"
    return ramiform.beam(s, step, width=3, depth=STEPS).variables().get("answer")


@ramiform.function
def vote(s: ProgramState, question: str) -> Vote:
    s += f"{HEADER}Question: {question}\n"
    return ramiform.vote(s, NUM_VOTERS, derive)


if __name__ == "__main__":
    batch = [{"question": question} for question in QUESTIONS]
    states = [program.run_batch(batch, temperature=1.6, seed=3) for program in (sample, search)]
    votes = [state.ret_value for state in vote.run_batch(batch, temperature=1.0, seed=3)]
    table = Table("question", "right", "one sample", "beam", "vote", "counted")
    for (question, right), one, best, voted in zip(QUESTIONS.items(), *states, votes, strict=True):
        answers = map(str, [right, one.ret_value, best.ret_value, voted.value])
        table.add_row(question, *answers, f"{sum(voted.counts.values())} of {NUM_VOTERS}")
    Console(width=160).print(table)
