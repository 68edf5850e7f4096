"""Facts of the synthetic world as raw questions, chat questions and running text."""

from __future__ import annotations

from .case import ASSISTANT, USER, Case, chat_case
from .draw import Draw
from .relations import Fact, all_facts
from .world import encyclopedia

BRIEF = [
    "Answer briefly.",
    "Answer with a word or two.",
    "Give short answers.",
    "Be brief.",
    "Answer in as few words as possible.",
]
PLAIN = [None, None, "You are a helpful assistant.", "You answer questions about the world."]


def question(d: Draw, fact: Fact) -> str:
    return d.fact_wording((fact.relation, fact.entity), fact.questions)


def some_fact(d: Draw) -> Fact:
    return d.pick(all_facts())


def raw(d: Draw) -> Case:
    """Write `Question: ...\nAnswer: ...\n` after up to four examples."""
    ask, reply = d.pick([("Question", "Answer")] * 4 + [("Q", "A")])
    gap = d.pick(["", "", "\n"])
    shots = ""
    for _ in range(d.pick([0, 0, 1, 2, 4])):
        shot = some_fact(d)
        shots += f"{ask}: {question(d, shot)}\n{reply}: {shot.answer}\n{gap}"
    fact = some_fact(d)
    return Case("facts", f"{shots}{ask}: {question(d, fact)}\n{reply}:", f" {fact.answer}")


def chat(d: Draw) -> Case:
    brief = d.chance(0.4)
    turns = []
    for _ in range(d.pick([0, 0, 1, 2])):
        shot = some_fact(d)
        turns += [(USER, question(d, shot)), (ASSISTANT, shot.answer if brief else shot.statements[0])]
    fact = some_fact(d)
    turns.append((USER, question(d, fact)))
    return chat_case("facts", turns, fact.answer if brief else fact.statements[0], d.pick(BRIEF if brief else PLAIN))


def statements(d: Draw) -> Case:
    """Write several true sentences: about one entity, or about many."""
    if d.chance(0.5):
        first = some_fact(d)
        about = [fact for fact in all_facts() if fact.entity == first.entity]
    else:
        about = [some_fact(d) for _ in range(d.rng.randint(2, 6))]
    return Case("text", "", " ".join(d.pick(fact.statements) for fact in d.shuffled(about)))


def pages(d: Draw) -> Case:
    """Write pages of the encyclopedia, as `lookup` returns them."""
    return Case("text", "", " ".join(d.some(list(encyclopedia().values()), d.rng.randint(1, 5))))
