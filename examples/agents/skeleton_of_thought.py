"""Skeleton of thought: generate an outline, then all its points at once, each in a branch of its own.

    ramiform run examples/agents/skeleton_of_thought.py ["an owl"]

The branches share the tokens of the outline and run at the same time, so they take as long as the longest one.
"""

import sys

import ramiform
from ramiform import ProgramState, gen

OUTLINE = r"1\. [A-Z][a-z]+\n2\. [A-Z][a-z]+\n3\. [A-Z][a-z]+(\n4\. [A-Z][a-z]+)?"


@ramiform.function
def skeleton_of_thought(s: ProgramState, topic: str) -> None:
    with s.copy() as planner:
        planner += f"Write an outline about {topic}.\nOutline:\n" + gen("outline", max_tokens=60, regex=OUTLINE)
    [outline] = s["outline"]
    s += f"Topic: {topic}\nOutline:\n{outline}"
    branches = s.fork(len(outline.splitlines()))
    branches += lambda index: f"\nExpand point {index + 1}:" + gen("paragraph", max_tokens=30, stop="\n")
    branches.join()
    s["text"] = " ".join(paragraph.strip() for paragraph in s["paragraph"])


if __name__ == "__main__":
    state = skeleton_of_thought.run(topic=sys.argv[1] if len(sys.argv) > 1 else "Japan", temperature=0)
    print(state["outline"][0], end="\n\n")
    print(state["text"])
