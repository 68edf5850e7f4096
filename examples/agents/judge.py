"""Branch, solve, merge: judge a short text point by point, each point in a branch of its own.

    ramiform run examples/agents/judge.py

Branch: the model writes an outline of the topic, and the text is judged by its points. Solve: for each point one branch
writes the expected sentence, and another rates the text's sentence against it. Merge: the mean of the ratings.

The text's sentence on a point is the one that shares most words with the expected one, because the shipped model rates
only claims about the same thing well.
"""

from functools import partial
from statistics import mean

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen, select

NUM_POINTS = 4
OUTLINE = r"1\. [A-Z][a-z]+" + "".join(rf"\n{number}\. [A-Z][a-z]+" for number in range(2, NUM_POINTS + 1))
HEADER = "Rate the answer from 1 (wrong) to 5 (right).\n"
TASKS = [
    ("Japan", "Japan is a country in Asia. The capital of Japan is Tokyo. People in Japan speak Japanese. "
     "The currency of Japan is the yen."),
    ("Japan", "Japan is a country in Asia. The capital of Japan is Oslo. People in Japan speak Japanese. "
     "The currency of Japan is the euro."),
]  # fmt: skip


@ramiform.function
def judge(s: ProgramState, topic: str, text: str) -> None:
    with s.copy() as planner:
        planner += f"Write an outline about {topic}.\nOutline:\n" + gen("outline", max_tokens=40, regex=OUTLINE)
    [outline] = s["outline"]  # a joined variable is the list of its branches' values, here of one
    s["points"] = [line.partition(". ")[2] for line in outline.splitlines()]

    experts = s.fork(NUM_POINTS)
    experts += lambda index: (
        f"Topic: {topic}\nOutline:\n{outline}\nExpand point {index + 1}:" + gen("expected", max_tokens=30, stop="\n")
    )
    experts.join()

    sentences = [f"{sentence.strip()}." for sentence in text.split(".") if sentence.strip()]
    s["found"] = [max(sentences, key=partial(num_shared, expected)) for expected in s["expected"]]
    judges = s.fork(NUM_POINTS)
    judges += [
        f"{HEADER}Reference: {expected.strip()}\nAnswer: {found}\nRating:" + select("rating", [" 1", " 3", " 5"])
        for expected, found in zip(s["expected"], s["found"], strict=True)
    ]
    judges.join()
    s["score"] = mean(int(rating) for rating in s["rating"])


def num_shared(one: str, other: str) -> int:
    return len(set(one.split()) & set(other.split()))


if __name__ == "__main__":
    for topic, text in TASKS:
        state = judge.run(topic=topic, text=text, temperature=0)
        table = Table("point", "expected", "found", "rating", title=f"{topic}: {state['score']:g} of 5", title_style="")
        for row in zip(state["points"], state["expected"], state["found"], state["rating"], strict=True):
            table.add_row(*(cell.strip() for cell in row))
        Console(width=120).print(table)
