"""Reading comprehension: passages and labelled documents with a question whose answer is in the text."""

from __future__ import annotations

from .case import USER, Case, chat_case
from .draw import Draw
from .records import HOBBIES, JOBS, MADE_THINGS, date

# Per subject kind: (question, sentence, value maker). {e} is the subject, {v} the value.
PERSON = [
    ("Where does {e} live?", "{e} lives in {v}.", lambda d: d.city()),
    ("How old is {e}?", "{e} is {v} years old.", lambda d: str(d.number(18, 95))),
    ("What is the job of {e}?", "{e} works as a {v}.", lambda d: d.pick(JOBS)),
    ("What does {e} like?", "{e} likes {v}.", lambda d: d.pick(HOBBIES)),
    ("Which company does {e} work for?", "{e} works for {v}.", lambda d: d.place()),
    ("Who is the best friend of {e}?", "The best friend of {e} is {v}.", lambda d: d.first_name()),
    ("When is the birthday of {e}?", "The birthday of {e} is on {v}.", date),
    ("What is the favourite city of {e}?", "The favourite city of {e} is {v}.", lambda d: d.city()),
]
COMPANY = [
    ("Who founded {e}?", "{e} was founded by {v}.", lambda d: d.person()),
    ("When was {e} founded?", "{e} was founded in {v}.", lambda d: str(d.number(1850, 2020))),
    ("Where is {e} based?", "{e} is based in {v}.", lambda d: d.city()),
    ("How many people work at {e}?", "{e} has {v} workers.", lambda d: str(d.number(5, 9000))),
    ("What does {e} make?", "{e} makes {v}.", lambda d: d.pick(MADE_THINGS)),
    ("Who leads {e}?", "{e} is led by {v}.", lambda d: d.person()),
]
TOWN = [
    ("How many people live in {e}?", "{v} people live in {e}.", lambda d: str(d.number(100, 90000))),
    ("Which river flows through {e}?", "The river {v} flows through {e}.", lambda d: d.place()),
    ("Who is the mayor of {e}?", "The mayor of {e} is {v}.", lambda d: d.person()),
    ("What is {e} known for?", "{e} is known for its {v}.", lambda d: d.pick(MADE_THINGS)),
    ("When was the bridge of {e} built?", "The bridge of {e} was built in {v}.", lambda d: str(d.number(1500, 2020))),
    ("What is the tallest tower in {e} called?", "The tallest tower in {e} is called {v}.", lambda d: d.place()),
]
KINDS = [
    (PERSON, lambda d: d.first_name()),
    (PERSON, lambda d: d.person()),
    (COMPANY, lambda d: d.place()),
    (TOWN, lambda d: d.place()),
]


def about(d: Draw, kind=None, most: int = 4) -> tuple[str, list[tuple[str, str]]]:
    """Return (text, [(question, answer)]) of one subject."""
    rows, name = kind or d.pick(KINDS)
    subject, sentences, asks = name(d), [], []
    for ask, tell, value in d.some(rows, d.rng.randint(2, most)):
        v = value(d)
        sentences.append(tell.format(e=subject, v=v))
        asks.append((ask.format(e=subject), v))
    return " ".join(sentences), asks


def person_lines(d: Draw) -> tuple[str, list[tuple[str, str]]]:
    """Return (text, [(true sentence, false sentence)]) of two persons."""
    text, claims = [], []
    for subject in (d.first_name(), d.first_name()):
        for _, tell, value in d.some(PERSON[:5], 2):
            v, other = value(d), value(d)
            while other == v:
                other = value(d)
            text.append(tell.format(e=subject, v=v))
            claims.append((text[-1], tell.format(e=subject, v=other)))
    return " ".join(text), claims


def passage(d: Draw) -> Case:
    texts = [about(d) for _ in range(d.pick([1, 1, 2, 3]))]
    text, asks = " ".join(t for t, _ in texts), [ask for _, some in texts for ask in some]
    if d.chance(0.4):
        ask, answer = d.pick(asks)
        way = d.wording(
            "passage chat", ["{t}\n\n{q}", "Text: {t}\nQuestion: {q}", "Read this: {t}\n{q}", "Context: {t}\n{q}"]
        )
        return chat_case(
            "reading",
            [(USER, way.format(t=text, q=ask))],
            answer,
            d.pick([None, None, "Answer from the text.", "Answer briefly."]),
        )
    way = d.wording("passage raw", ["Passage: {t}\n", "Text: {t}\n", "Context: {t}\n", "{t}\n\n"])
    asked = d.some(asks, min(len(asks), d.pick([1, 1, 2, 3])))
    lines = way.format(t=text) + "".join(f"Question: {ask}\nAnswer: {answer}\n" for ask, answer in asked[:-1])
    ask, answer = asked[-1]
    return Case("reading", f"{lines}Question: {ask}\nAnswer:", f" {answer}")


def documents(d: Draw, count: int | None = None) -> Case:
    """Write `[1] ...` lines, a question, and the answer with the number of its source."""
    texts = [about(d, most=3) for _ in range(count or d.rng.randint(2, 4))]
    lines = "\n".join(f"[{n}] {text}" for n, (text, _) in enumerate(texts, start=1))
    number = d.rng.randrange(len(texts))
    ask, answer = d.pick(texts[number][1])
    answer = f"{answer} [{number + 1}]"
    if d.chance(0.4):
        way = d.wording(
            "documents chat",
            ["Documents:\n{l}\n\nQuestion: {q}", "{l}\n\n{q}", "Sources:\n{l}\nAnswer with the source: {q}"],
        )
        return chat_case(
            "reading",
            [(USER, way.format(l=lines, q=ask))],
            answer,
            d.pick([None, "Answer from the documents and name the source.", "Answer with the source number."]),
        )
    way = d.wording(
        "documents raw",
        [
            "Documents:\n{l}\nQuestion: {q}\nAnswer:",
            "{l}\nQuestion: {q}\nAnswer:",
            "Sources:\n{l}\n\nQuestion: {q}\nAnswer:",
        ],
    )
    return Case("reading", way.format(l=lines, q=ask), f" {answer}")


def long_documents(d: Draw) -> Case:
    return documents(d, d.rng.randint(8, 40))
