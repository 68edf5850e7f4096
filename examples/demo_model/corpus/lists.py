"""Lists, outlines that are then expanded, summaries and merged texts."""

from __future__ import annotations

from .case import USER, Case, chat_case
from .draw import Draw
from .reading import about
from .relations import Fact, all_facts
from .world import ANIMALS, COUNTRIES, Animal, Country, article, sentence, the

TIPS = {
    "stay healthy": [
        "Eat fruit and vegetables.",
        "Drink enough water.",
        "Sleep eight hours.",
        "Go for a walk every day.",
        "Wash your hands.",
    ],
    "learn a language": [
        "Practise every day.",
        "Read easy books.",
        "Talk with native speakers.",
        "Learn ten words a day.",
        "Listen to songs.",
    ],
    "save money": [
        "Write down what you spend.",
        "Cook at home.",
        "Buy used things.",
        "Set a monthly limit.",
        "Compare prices.",
    ],
    "sleep better": [
        "Go to bed at the same time.",
        "Keep the room dark.",
        "Turn off your phone.",
        "Drink no coffee at night.",
        "Open a window.",
    ],
    "write well": [
        "Use short sentences.",
        "Read your text aloud.",
        "Cut needless words.",
        "Use plain words.",
        "Ask a friend to read it.",
    ],
    "cook well": [
        "Use fresh food.",
        "Taste while you cook.",
        "Keep your knives sharp.",
        "Read the recipe first.",
        "Add salt with care.",
    ],
    "grow plants": [
        "Give them enough light.",
        "Water them in the morning.",
        "Use good soil.",
        "Remove dry leaves.",
        "Talk to other gardeners.",
    ],
    "prepare for an exam": [
        "Start early.",
        "Make a plan.",
        "Take short breaks.",
        "Explain it to a friend.",
        "Sleep well before the day.",
    ],
    "travel light": [
        "Pack one small bag.",
        "Roll your clothes.",
        "Take few shoes.",
        "Leave books at home.",
        "Wash clothes on the way.",
    ],
    "make friends": ["Smile at people.", "Ask questions.", "Listen well.", "Join a club.", "Be kind."],
}
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5}
TELLING = {"capital", "language", "currency", "continent", "population", "class", "legs", "food", "habitat", "flies"}


def numbered(lines: list[str]) -> str:
    return "\n".join(f"{n}. {line}" for n, line in enumerate(lines, start=1))


def facts_about(entity: str) -> list[Fact]:
    return [fact for fact in all_facts() if fact.entity == entity and fact.relation in TELLING]


def entity(d: Draw) -> str:
    return the(d.pick(COUNTRIES).name) if d.chance(0.5) else article(d.pick(ANIMALS).name)


def three_facts(d: Draw) -> Case:
    e = entity(d)
    word = d.pick(["two", "three", "three", "four", "five"])
    lines = numbered([fact.statements[0] for fact in facts_about(e)][: NUMBERS[word]])
    ask = d.wording(
        "facts",
        [
            f"Tell me {word} facts about {e}.",
            f"List {word} facts about {e}.",
            f"Give me {word} facts about {e}.",
            f"{sentence(word)} facts about {e}, please.",
            f"Write {word} facts about {e}.",
        ],
    )
    if d.chance(0.5):
        return chat_case("lists", [(USER, ask)], lines)
    return Case("lists", f"{ask}\n", lines)


def tips(d: Draw) -> Case:
    goal, word = d.pick(list(TIPS)), d.pick(list(NUMBERS))
    lines = numbered(TIPS[goal][: NUMBERS[word]])
    ask = d.wording(
        "tips",
        [
            f"Give me {word} tips to {goal}.",
            f"List {word} tips to {goal}.",
            f"What are {word} tips to {goal}?",
            f"{sentence(word)} tips to {goal}:",
            f"How can I {goal}? Give {word} tips.",
        ],
    )
    if d.chance(0.5):
        return chat_case("lists", [(USER, ask)], lines)
    return Case("lists", f"{ask}\n", lines)


def one_tip(d: Draw) -> Case:
    """Expand a tip into a short paragraph, as after a list."""
    goal = d.pick(list(TIPS))
    n = d.rng.randrange(5)
    tip = TIPS[goal][n]
    answer = f"{tip} This is a good way to {goal}, because it is easy to do and works every day."
    ask = d.wording(
        "one tip",
        [
            f"Expand this tip to {goal}: {tip}",
            f"Write a sentence more about this tip to {goal}: {tip}",
            f"Turn the tip into a paragraph. Goal: {goal}. Tip: {tip}",
        ],
    )
    if d.chance(0.5):
        return chat_case("lists", [(USER, ask)], answer)
    return Case("lists", f"{ask}\nParagraph:", f" {answer}")


def points(e: Country | Animal) -> list[tuple[str, str]]:
    if isinstance(e, Country):
        name = the(e.name)
        return [
            ("Place", f"{sentence(name)} is a country in {e.continent}."),
            ("Capital", f"The capital of {name} is {e.capital}."),
            ("Language", f"People in {name} speak {e.language}."),
            ("Money", f"The currency of {name} is the {e.currency}."),
            ("People", f"About {e.population} million people live in {name}."),
        ]
    name = sentence(article(e.name))
    return [
        ("Kind", f"{name} is {article(e.kind)}."),
        ("Body", f"{name} has {e.legs} legs."),
        ("Food", f"{sentence(e.plural)} eat {e.food}."),
        ("Home", f"{sentence(e.plural)} live in {e.habitat}."),
    ]


def outline(d: Draw) -> Case:
    """Write an outline of a few words per point, then each point in full."""
    thing = d.pick(COUNTRIES) if d.chance(0.5) else d.pick(ANIMALS)
    name = the(thing.name) if isinstance(thing, Country) else article(thing.name)
    parts = points(thing)[: d.pick([3, 3, 4])]
    skeleton = numbered([title for title, _ in parts])
    ask = d.wording(
        "outline",
        [
            f"Write an outline about {name}.",
            f"Give an outline for a text about {name}.",
            f"Outline a short text about {name}.",
            f"Make a short outline about {name}.",
        ],
    )
    n = d.rng.randrange(len(parts))
    match d.pick(["outline", "expand", "expand", "all"]):
        case "outline" if d.chance(0.5):
            return chat_case("lists", [(USER, ask)], skeleton)
        case "outline":
            return Case("lists", f"{ask}\nOutline:\n", skeleton)
        case "expand" if d.chance(0.5):
            return chat_case(
                "lists", [(USER, f"Topic: {name}\nOutline:\n{skeleton}\nExpand point {n + 1}.")], parts[n][1]
            )
        case "expand":
            return Case("lists", f"Topic: {name}\nOutline:\n{skeleton}\nExpand point {n + 1}:", f" {parts[n][1]}")
    return Case("lists", f"{ask}\nOutline:\n{skeleton}\nText:", " " + " ".join(text for _, text in parts))


def summary(d: Draw) -> Case:
    """Summarise in one line: the first sentence carries the content."""
    text, _ = about(d, most=4)
    answer = text.split(". ")[0].rstrip(".") + "."
    if d.chance(0.5):
        return chat_case(
            "lists",
            [
                (
                    USER,
                    d.wording(
                        "summary",
                        [
                            "Summarize in one sentence: {t}",
                            "Summarize this text.\n{t}",
                            "Give a one-line summary.\n{t}",
                            "{t}\nSum this up in one sentence.",
                        ],
                    ).format(t=text),
                )
            ],
            answer,
        )
    return Case(
        "lists",
        d.wording("summary raw", ["Text: {t}\nSummary:", "Passage: {t}\nSummary:", "{t}\nSummary:"]).format(t=text),
        f" {answer}",
    )


def merge(d: Draw) -> Case:
    one, other = about(d, most=2)[0], about(d, most=2)[0]
    if d.chance(0.5):
        return chat_case(
            "lists",
            [
                (
                    USER,
                    d.wording(
                        "merge",
                        [
                            "Merge these texts.\nA: {a}\nB: {b}",
                            "Combine the two texts into one.\nA: {a}\nB: {b}",
                            "Join both texts.\nA: {a}\nB: {b}",
                        ],
                    ).format(a=one, b=other),
                )
            ],
            f"{one} {other}",
        )
    return Case("lists", f"A: {one}\nB: {other}\nMerged:", f" {one} {other}")
