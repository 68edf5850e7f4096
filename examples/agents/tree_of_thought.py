"""Small tree of thought: propose several thoughts at once, judge each, then vote among those that passed.

    ramiform run examples/agents/tree_of_thought.py

The branches are forks: they run together and share the prompt's tokens. Judging and voting are `select`s, which read
the model's probabilities instead of sampling from them.
"""

from rich.console import Console
from rich.tree import Tree

import ramiform
from ramiform import ProgramState, gen, select

TASKS = [
    ("What is the capital of Japan?", "The capital of Japan is"),
    ("What is the currency of Brazil?", "The currency of Brazil is"),
]


@ramiform.function
def tree_of_thought(s: ProgramState, question: str, stem: str, width: int = 4) -> None:
    s += f"Question: {question}\n"
    branches = s.fork(width)
    for seed, branch in enumerate(branches):
        branch += f"Thought: {stem}" + gen(
            "thought", max_tokens=12, stop=[".", "\n"], temperature=1.2, top_p=0.95, seed=seed
        )
        branch += ".\nCorrect:" + select("verdict", choices=[" yes", " no"])
    branches.join()
    thoughts = [f"{stem}{thought}." for thought in s["thought"]]
    passed = [t for t, verdict in zip(thoughts, s["verdict"], strict=True) if verdict == " yes"] or thoughts
    candidates = list(dict.fromkeys(passed))
    s += "".join(f"{number}. {thought}\n" for number, thought in enumerate(candidates, start=1))
    s += "Best:" + select("best", choices=[f" {number}" for number in range(1, len(candidates) + 1)])
    s["answer"] = candidates[int(s["best"]) - 1]


if __name__ == "__main__":
    for question, stem in TASKS:
        state = tree_of_thought.run(question=question, stem=stem)
        tree = Tree(f"[bold]{question}")
        for thought, verdict in zip(state["thought"], state["verdict"], strict=True):
            tree.add(f"[green]{stem}{thought}.[/green] correct:{verdict}")
        tree.add(f"[bold]best: {state['answer']}")
        Console(highlight=False).print(tree)
