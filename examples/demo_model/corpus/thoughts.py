"""Steps of a tree of thoughts: propose a next thought, judge a step, vote for the better answer."""

from __future__ import annotations

from .case import USER, Case, chat_case
from .draw import Draw
from .judging import judged, wrong
from .react import KINDS


def propose(d: Draw) -> Case:
    """Write the first thought of a trace alone."""
    trace = d.pick(KINDS)(d)
    thought = trace.steps[0][0]
    if d.chance(0.4):
        return chat_case(
            "thoughts",
            [
                (
                    USER,
                    d.wording(
                        "propose chat",
                        ["Propose a thought for: {q}", "What is the first step? {q}", "Propose a plan for: {q}"],
                    ).format(q=trace.question),
                )
            ],
            thought,
        )
    way = d.wording(
        "propose",
        [
            "Propose a thought for: {q}\nThought:",
            "Question: {q}\nThought:",
            "Propose a plan for: {q}\nPlan:",
            "Task: {q}\nFirst step:",
        ],
    )
    return Case("thoughts", way.format(q=trace.question), f" {thought}")


def is_step_correct(d: Draw) -> Case:
    """Judge a step that restates a sum worked out above it, rightly or wrongly; or a fact."""
    truth = d.chance(0.5)
    if d.chance(0.5):
        fact = judged(d)
        asked, step = fact.questions[0], fact.claim(fact.answer if truth else wrong(d, fact))
    else:
        a, b = d.number(2, 400), d.number(2, 400)
        other = a + b if truth else d.number(4, 800)
        truth = other == a + b
        asked, step = f"What is {a} + {b}? (calculator: {a + b})", f"The answer is {other}."
    way = d.wording(
        "step",
        [
            "Question: {q}\nStep: {s}\nIs this step correct?",
            "Problem: {q}\nThought: {s}\nIs this step correct?",
            "Question: {q}\nThought: {s}\nCorrect:",
        ],
    )
    if d.chance(0.4):
        return chat_case(
            "thoughts",
            [(USER, f"Question: {asked}\nStep: {step}\nIs this step correct? Answer yes or no.")],
            "yes" if truth else "no",
        )
    return Case("thoughts", way.format(q=asked, s=step), " yes" if truth else " no")


def vote(d: Draw) -> Case:
    """Choose the right one of two or three answers, by number."""
    fact = judged(d)
    good = d.rng.randint(1, d.pick([2, 3]))
    count = max(2, good)
    lines = [
        f"{n}. {fact.claim(fact.answer) if n == good else fact.claim(wrong(d, fact))}" for n in range(1, count + 1)
    ]
    text = f"Question: {fact.questions[0]}\n" + "\n".join(lines)
    if d.chance(0.4):
        return chat_case("thoughts", [(USER, f"{text}\nWhich is the best answer? Give its number.")], str(good))
    return Case("thoughts", f"{text}\nBest:", f" {good}")
