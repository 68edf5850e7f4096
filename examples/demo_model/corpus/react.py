"""ReAct traces with two tools, `lookup[entity]` and `calculate(expression)`. The model copies, never computes."""

from __future__ import annotations

from .case import Case
from .draw import Draw
from .trace import Trace, Writer
from .world import (
    ANIMALS,
    COUNTRIES,
    ELEMENTS,
    MONTHS,
    PLANETS,
    Animal,
    Country,
    animal_text,
    article,
    country_text,
    encyclopedia,
    the,
)

THINGS = """apples books coins stamps marbles pencils cards stickers eggs shells balloons cookies tickets flowers
stones""".split()
HEADER = (
    "Answer the question in steps. Use lookup[name] to look something up, calculate(expression) for arithmetic "
    "and finish[answer] to end.\n\n"
)
CONTINENTS = ["Europe", "Asia", "Africa", "North America", "South America", "Oceania"]


def a_country(d: Draw) -> Country:
    if d.chance(0.5):
        return d.pick(COUNTRIES)
    return Country(d.place(), d.place(), d.place(), d.place().lower(), d.pick(CONTINENTS), d.number(1, 900))


def an_animal(d: Draw) -> Animal:
    if d.chance(0.6):
        return d.pick(ANIMALS)
    name = d.place().lower()
    return Animal(
        name,
        name + "s",
        d.pick(["mammal", "bird", "insect", "reptile", "fish"]),
        d.pick([0, 2, 4, 6, 8, 10, 12, 14]),
        d.pick(["leaves", "fish", "grass", "insects", "fruit"]),
        d.pick(["forests", "rivers", "caves", "deserts"]),
        False,
    )


def sum_of_two(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    a, b = d.number(2, 999), d.number(2, 999)
    question = d.wording(
        "sum",
        [
            f"{who} has {a} {thing} and buys {b} more. How many {thing} does {who} have?",
            f"{who} has {a} {thing} and gets {b} more. How many {thing} are there in all?",
            f"There are {a} {thing} in one box and {b} {thing} in another. How many {thing} are there in total?",
            f"{who} found {a} {thing} on Monday and {b} on Tuesday. How many {thing} did {who} find?",
            f"What is {a} plus {b}?",
            f"What is the sum of {a} and {b}?",
            f"What is {a} + {b}?",
        ],
    )
    return Trace(question, t.finish(t.calculate(f"{a} + {b}", f"add {a} and {b}")))


def difference(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    b, a = sorted([d.number(2, 999), d.number(2, 999)])
    question = d.wording(
        "difference",
        [
            f"{who} has {a} {thing} and gives away {b}. How many {thing} are left?",
            f"{who} had {a} {thing} and lost {b} of them. How many {thing} does {who} still have?",
            f"There are {a} {thing} and {b} are sold. How many {thing} remain?",
            f"What is {a} minus {b}?",
            f"What is {a} - {b}?",
            f"A shop has {a} {thing}. It sells {b}. How many are left?",
        ],
    )
    return Trace(question, t.finish(t.calculate(f"{a} - {b}", f"subtract {b} from {a}")))


def product(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    a, b = d.number(2, 99), d.number(2, 99)
    question = d.wording(
        "product",
        [
            f"{who} has {a} boxes with {b} {thing} each. How many {thing} are there?",
            f"There are {a} bags with {b} {thing} in each. How many {thing} are there in all?",
            f"{who} buys {a} packs of {b} {thing}. How many {thing} is that?",
            f"What is {a} times {b}?",
            f"What is {a} * {b}?",
            f"What is {a} multiplied by {b}?",
        ],
    )
    return Trace(question, t.finish(t.calculate(f"{a} * {b}", f"multiply {a} by {b}")))


def quotient(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    b, result = d.number(2, 40), d.number(2, 60)
    a = b * result
    question = d.wording(
        "quotient",
        [
            f"{who} shares {a} {thing} among {b} friends. How many {thing} does each friend get?",
            f"{a} {thing} are put into {b} equal bags. How many {thing} are in each bag?",
            f"What is {a} divided by {b}?",
            f"What is {a} / {b}?",
            f"{who} packs {a} {thing} into {b} boxes. How many are in each box?",
        ],
    )
    return Trace(question, t.finish(t.calculate(f"{a} / {b}", f"divide {a} by {b}")))


def two_sums(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    a, b, c = d.number(2, 99), d.number(2, 99), d.number(2, 99)
    question = d.wording(
        "two sums",
        [
            f"{who} has {a} {thing}, buys {b} more and then gets {c} times as many. How many {thing} does {who} have?",
            f"{who} fills {c} bags. In each bag there are {a} red and {b} blue {thing}. How many {thing} are there?",
            f"There are {c} rooms with {a} old and {b} new {thing} in each. How many {thing} are there in all?",
            f"What is {a} plus {b}, times {c}?",
        ],
    )
    first = t.calculate(f"{a} + {b}", f"add {a} and {b}")
    return Trace(question, t.finish(t.calculate(f"{first} * {c}", f"multiply {first} by {c}")))


def sum_then_minus(d: Draw) -> Trace:
    t, who, thing = Writer(d), d.first_name(), d.pick(THINGS)
    a, b = d.number(20, 500), d.number(20, 500)
    c = d.number(2, a)
    question = d.wording(
        "sum minus",
        [
            f"{who} has {a} {thing}, buys {b} and gives away {c}. How many {thing} are left?",
            f"{who} had {a} {thing}, found {b} more and lost {c}. How many {thing} does {who} have now?",
            f"What is {a} plus {b} minus {c}?",
            f"A shop has {a} {thing}, gets {b} more and sells {c}. How many are left?",
        ],
    )
    first = t.calculate(f"{a} + {b}", f"add {a} and {b}")
    return Trace(question, t.finish(t.calculate(f"{first} - {c}", f"subtract {c} from {first}")))


def legs(d: Draw) -> Trace:
    t, animal, count = Writer(d), an_animal(d), d.number(2, 99)
    question = d.wording(
        "legs",
        [
            f"How many legs do {count} {animal.plural} have?",
            f"There are {count} {animal.plural}. How many legs do they have?",
            f"{count} {animal.plural} have how many legs?",
            f"How many legs are there on {count} {animal.plural}?",
        ],
    )
    t.lookup(animal.name, f"the legs of {article(animal.name)}", animal_text(animal))
    return Trace(
        question, t.finish(t.calculate(f"{count} * {animal.legs}", f"multiply {count} by {animal.legs}")), t.pages
    )


def legs_of_two(d: Draw) -> Trace:
    t, a, b = Writer(d), an_animal(d), an_animal(d)
    question = d.wording(
        "legs of two",
        [
            f"How many legs do {article(a.name)} and {article(b.name)} have together?",
            f"How many legs have {article(a.name)} and {article(b.name)} in all?",
        ],
    )
    t.lookup(a.name, f"the legs of {article(a.name)}", animal_text(a))
    t.lookup(b.name, f"the legs of {article(b.name)}", animal_text(b))
    return Trace(question, t.finish(t.calculate(f"{a.legs} + {b.legs}", f"add {a.legs} and {b.legs}")), t.pages)


def populations(d: Draw) -> Trace:
    t, a, b = Writer(d), a_country(d), a_country(d)
    sign, how = d.pick(["+", "+", "-"]), ""
    if sign == "-" and a.population < b.population:
        a, b = b, a
    if sign == "+":
        how = f"add {a.population} and {b.population}"
        question = d.wording(
            "populations",
            [
                f"How many million people live in {the(a.name)} and {the(b.name)} together?",
                f"What is the population of {the(a.name)} plus the population of {the(b.name)}, in millions?",
                f"How many people live in {the(a.name)} and {the(b.name)} in all, in millions?",
            ],
        )
    else:
        how = f"subtract {b.population} from {a.population}"
        question = d.wording(
            "population difference",
            [
                f"How many million more people live in {the(a.name)} than in {the(b.name)}?",
                f"By how many million is the population of {the(a.name)} larger than that of {the(b.name)}?",
            ],
        )
    t.lookup(a.name, f"the population of {the(a.name)}", country_text(a))
    t.lookup(b.name, f"the population of {the(b.name)}", country_text(b))
    return Trace(question, t.finish(t.calculate(f"{a.population} {sign} {b.population}", how)), t.pages)


def country_fact(d: Draw) -> Trace:
    t, c = Writer(d), a_country(d)
    what, answer, questions = d.pick(
        [
            (
                "the capital",
                c.capital,
                ["What is the capital of {e}?", "Which city is the capital of {e}?", "Name the capital of {e}."],
            ),
            (
                "the currency",
                c.currency,
                ["What is the currency of {e}?", "Which currency is used in {e}?", "What do people pay with in {e}?"],
            ),
            (
                "the continent",
                c.continent,
                ["Which continent is {e} in?", "On which continent is {e}?", "What continent is {e} on?"],
            ),
            (
                "the population",
                f"{c.population} million",
                ["How many people live in {e}?", "What is the population of {e}?"],
            ),
        ]
    )
    t.lookup(c.name, f"{what} of {the(c.name)}", country_text(c))
    return Trace(d.wording(("react", what), questions).format(e=the(c.name)), t.finish(answer), t.pages)


def animal_fact(d: Draw) -> Trace:
    t, a = Writer(d), an_animal(d)
    what, answer, questions = d.pick(
        [
            ("the legs", str(a.legs), ["How many legs does {e} have?", "How many legs do {p} have?"]),
            ("the food", a.food, ["What does {e} eat?", "What do {p} eat?"]),
            ("the kind", a.kind, ["What kind of animal is {e}?", "What type of animal is {e}?"]),
            ("the habitat", a.habitat, ["Where does {e} live?", "Where do {p} live?"]),
        ]
    )
    t.lookup(a.name, f"{what} of {article(a.name)}", animal_text(a))
    return Trace(d.pick(questions).format(e=article(a.name), p=a.plural), t.finish(answer), t.pages)


def other_fact(d: Draw) -> Trace:
    t = Writer(d)
    p, x, m = d.pick(PLANETS), d.pick(ELEMENTS), d.pick(MONTHS)
    pages = encyclopedia()
    entity, what, question, answer = d.pick(
        [
            (p.name, "the place", f"Which number from the sun is {p.name}?", str(p.place)),
            (p.name, "the kind", f"What kind of planet is {p.name}?", p.kind),
            (x.name, "the symbol", f"What is the chemical symbol of {x.name}?", x.symbol),
            (x.name, "the number", f"What is the atomic number of {x.name}?", str(x.number)),
            (m.name, "the days", f"How many days does {m.name} have?", str(m.days)),
            (m.name, "the number", f"Which month number is {m.name}?", str(m.number)),
        ]
    )
    if entity == "mercury":
        return country_fact(d)
    t.lookup(entity, f"{what} of {entity}", pages[entity.lower()])
    return Trace(question, t.finish(answer), t.pages)


def numbers_of_two(d: Draw) -> Trace:
    t = Writer(d)
    pages = encyclopedia()
    if d.chance(0.5):
        a, b = d.some([x for x in ELEMENTS if x.name != "mercury"], 2)
        question, what, na, nb = (
            f"What is the atomic number of {a.name} plus the atomic number of {b.name}?",
            "the number",
            a.number,
            b.number,
        )
    else:
        a, b = d.some(MONTHS, 2)
        question, what, na, nb = (f"How many days do {a.name} and {b.name} have together?", "the days", a.days, b.days)
    t.lookup(a.name, f"{what} of {a.name}", pages[a.name.lower()])
    t.lookup(b.name, f"{what} of {b.name}", pages[b.name.lower()])
    return Trace(question, t.finish(t.calculate(f"{na} + {nb}", f"add {na} and {nb}")), t.pages)


KINDS = [
    sum_of_two,
    sum_of_two,
    difference,
    product,
    quotient,
    two_sums,
    sum_then_minus,
    legs,
    legs,
    legs_of_two,
    populations,
    populations,
    country_fact,
    country_fact,
    animal_fact,
    animal_fact,
    other_fact,
    numbers_of_two,
]


def raw(d: Draw) -> Case:
    header = HEADER if d.chance(0.5) else ""
    for _ in range(d.pick([0, 0, 0, 1, 2])):
        shot = d.pick(KINDS)(d)
        header += f"Question: {shot.question}\n{shot.text}\n\n"
    trace = d.pick(KINDS)(d)
    opening = "Thought 1:"
    return Case(
        "react", f"{header}Question: {trace.question}\n{opening}", trace.text.removeprefix(opening), pages=trace.pages
    )
