"""Self-consistency: draw several samples of an answer in one generation, and let them vote.

    ramiform run examples/agents/self_consistency.py ["A question?"]

`gen(n=...)` draws the samples from one prompt, which is computed once. At this temperature some samples are wrong.
"""

import sys
from collections import Counter

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen

QUESTIONS = ["What is the capital of Australia?", "What is the chemical symbol of iron?", "What do pandas eat?"]


@ramiform.function
def self_consistency(s: ProgramState, question: str, samples: int = 9) -> None:
    s += f"Question: {question}\nAnswer:"
    s += gen("answers", n=samples, max_tokens=12, temperature=1.2, stop="\n")
    votes = Counter(answer.strip() for answer in s["answers"])
    s["votes"] = votes.most_common()
    s["answer"] = s["votes"][0][0]


if __name__ == "__main__":
    table = Table("question", "answer", "votes")
    for state in self_consistency.run_batch([{"question": question} for question in sys.argv[1:] or QUESTIONS], seed=7):
        question = state.text().split("\n")[0].removeprefix("Question: ")
        table.add_row(question, state["answer"], ", ".join(f"{answer} {count}" for answer, count in state["votes"]))
    Console(width=120).print(table)
