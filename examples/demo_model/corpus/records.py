"""Records and texts that express them: a person, an order, an event, a book, a flight, a pet."""

from __future__ import annotations

from .draw import Draw
from .world import MONTHS

JOBS = """nurse teacher engineer baker pilot writer painter doctor lawyer farmer chef gardener driver musician architect
dentist librarian carpenter scientist mathematician designer editor mechanic waiter plumber""".split()
HOBBIES = """chess reading swimming hiking cooking painting running tennis football singing dancing cycling sailing
yoga fishing""".split()
ITEMS = """lamp chair table desk laptop phone bicycle tent jacket book pen backpack kettle camera clock mirror sofa
umbrella guitar keyboard monitor printer mug plate spoon pillow blanket helmet watch ladder""".split()
COLOURS = "red blue green black white yellow grey brown orange purple pink silver".split()
EVENTS = "concert|meeting|workshop|wedding|lecture|exhibition|festival|conference|party|market|reading|race".split("|")
GENRES = "novel|biography|thriller|cookbook|guide|poem collection|history|mystery".split("|")
TITLE = ["The {a} {b}", "{a} {b}", "A {a} {b}", "The {b} of {p}", "{p} and the {b}"]
TITLE_A = "Silent Golden Broken Hidden Last First Long Quiet Secret Winter Summer Burning Lost Blue Red Distant".split()
TITLE_B = "River Garden House Road Sea Forest Night Letter Mountain Clock Mirror Bridge Island Song Door Storm".split()
MADE_THINGS = (
    "cheese bread chairs lamps bicycles glass shoes clocks wine chocolate carpets boats toys paper hats".split()
)
PETS = "dog cat rabbit parrot goldfish hamster turtle pony".split()


def title(d: Draw) -> str:
    return d.pick(TITLE).format(a=d.pick(TITLE_A), b=d.pick(TITLE_B), p=d.place())


def price(d: Draw) -> int | float:
    return d.number(2, 900) if d.chance(0.6) else float(f"{d.number(2, 900)}.{d.pick([25, 49, 5, 75, 95, 99, 15])}")


def date(d: Draw) -> str:
    return f"{d.pick(MONTHS).name} {d.rng.randint(1, 28)}"


def listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def yes(value: bool, text: str, otherwise: str) -> str:
    return text if value else otherwise


# Each kind: the subject, and per field its key's names, its value and the predicates that tell it.
# A predicate follows the subject: "Ada | lives in Paris".


def person(d: Draw):
    city, age, job, married = d.city(), d.number(18, 95), d.noun(JOBS), d.chance(0.5)
    hobbies, company = d.some(HOBBIES, d.rng.randint(1, 3)), d.place()
    name = d.pick([d.person, d.first_name, d.person])()
    email = f"{name.split()[0].lower()}@{d.place().lower()}.{d.pick(['com', 'org', 'net'])}"
    return (
        d.pick(["She", "He"]),
        ("name", name),
        {
            "age": (["age"], age, [f"is {age} years old", f"is {age}", f"turned {age} this year", f"is aged {age}"]),
            "city": (
                ["city", "city", "home", "location"],
                city,
                [
                    f"lives in {city}",
                    f"is from {city}",
                    f"comes from {city}",
                    f"has a flat in {city}",
                    f"moved to {city}",
                ],
            ),
            "job": (
                ["job", "job", "occupation", "profession"],
                job,
                [f"works as a {job}", f"is a {job}", f"has a job as a {job}", f"earns a living as a {job}"],
            ),
            "married": (["married", "is_married"], married, [yes(married, "is married", "is not married")]),
            "hobbies": (
                ["hobbies", "interests"],
                hobbies,
                [f"likes {listed(hobbies)}", f"enjoys {listed(hobbies)}", f"spends free time on {listed(hobbies)}"],
            ),
            "company": (
                ["company", "employer"],
                company,
                [f"works for {company}", f"is employed at {company}", f"has a contract with {company}"],
            ),
            "email": (["email"], email, [f"can be reached at {email}", f"has the email {email}"]),
        },
    )


def order(d: Draw):
    number, quantity, item, cost = d.code(), d.number(1, 60), d.noun(ITEMS), price(d)
    customer, city, paid, colour = d.person(), d.city(), d.chance(0.5), d.pick(COLOURS)
    return (
        "It",
        ("order_id", f"Order {number}", number),
        {
            "quantity": (
                ["quantity", "amount", "count"],
                quantity,
                [f"is for {quantity} pieces", f"has a quantity of {quantity}", f"contains {quantity} pieces"],
            ),
            "item": (
                ["item", "product"],
                item,
                [f"is about the item {item}", f"asks for the {item}", f"names the product {item}"],
            ),
            "price": (
                ["price", "total", "cost"],
                cost,
                [f"costs {cost} euros", f"comes to {cost} dollars", f"has a total of {cost} euros"],
            ),
            "customer": (
                ["customer", "customer", "name", "buyer"],
                customer,
                [f"was placed by {customer}", f"belongs to {customer}", f"came from the customer {customer}"],
            ),
            "city": (
                ["city", "destination"],
                city,
                [f"ships to {city}", f"goes to {city}", f"will be delivered to {city}"],
            ),
            "paid": (
                ["paid", "is_paid"],
                paid,
                [yes(paid, "is paid", "is not paid"), yes(paid, "has been paid", "has not been paid")],
            ),
            "color": (["color", "colour"], colour, [f"is wanted in {colour}", f"has the colour {colour}"]),
        },
    )


def event(d: Draw):
    kind, day, city, guests = d.pick(EVENTS), date(d), d.city(), d.number(8, 950)
    host, free, hour = d.person(), d.chance(0.5), d.rng.randint(8, 22)
    name = f"{d.place()} {kind.capitalize()}"
    return (
        "It",
        ("event", f"The {name}", name),
        {
            "date": (["date", "day"], day, [f"takes place on {day}", f"is on {day}", f"will be held on {day}"]),
            "city": (
                ["city", "place", "location"],
                city,
                [f"happens in {city}", f"is held in {city}", f"meets in {city}"],
            ),
            "attendees": (
                ["attendees", "guests", "people"],
                guests,
                [f"expects {guests} guests", f"has {guests} guests", f"will have {guests} people"],
            ),
            "host": (["host", "organizer"], host, [f"is organised by {host}", f"is hosted by {host}"]),
            "free": (["free", "is_free"], free, [yes(free, "is free", "is not free")]),
            "time": (["time", "start"], f"{hour}:00", [f"starts at {hour}:00", f"begins at {hour}:00"]),
            "type": (["type", "kind"], kind, [f"is a {kind}"]),
        },
    )


def book(d: Draw):
    name, author, year, pages = title(d), d.person(), d.number(1850, 2025), d.number(60, 990)
    genre, publisher = d.pick(GENRES), d.place()
    return (
        "It",
        ("title", name),
        {
            "author": (
                ["author", "author", "writer"],
                author,
                [f"was written by {author}", f"is by {author}", f"is a work of {author}"],
            ),
            "year": (
                ["year", "published"],
                year,
                [f"appeared in {year}", f"was published in {year}", f"came out in {year}"],
            ),
            "pages": (
                ["pages", "num_pages"],
                pages,
                [f"has {pages} pages", f"is {pages} pages long", f"runs to {pages} pages"],
            ),
            "genre": (["genre", "type"], genre, [f"is a {genre}", f"counts as a {genre}"]),
            "publisher": (["publisher"], publisher, [f"is published by {publisher}", f"came out with {publisher}"]),
        },
    )


def flight(d: Draw):
    number, origin, target, gate = d.code(), d.city(), d.city(), f"{d.pick('ABCDEF')}{d.rng.randint(1, 40)}"
    seats, late, hour = d.number(20, 400), d.chance(0.5), f"{d.rng.randint(5, 23)}:{d.rng.randint(10, 59)}"
    return (
        "It",
        ("flight", f"Flight {number}", number),
        {
            "origin": (
                ["origin", "from", "departure"],
                origin,
                [f"starts in {origin}", f"leaves from {origin}", f"departs from {origin}"],
            ),
            "destination": (
                ["destination", "to", "arrival"],
                target,
                [f"goes to {target}", f"lands in {target}", f"arrives in {target}"],
            ),
            "gate": (["gate"], gate, [f"boards at gate {gate}", f"uses gate {gate}"]),
            "delayed": (["delayed"], late, [yes(late, "is delayed", "is on time")]),
            "passengers": (["passengers", "seats"], seats, [f"carries {seats} passengers", f"has {seats} passengers"]),
            "time": (["time"], hour, [f"takes off at {hour}", f"leaves at {hour}"]),
        },
    )


def pet(d: Draw):
    kind, age, owner, colour, weight = (
        d.noun(PETS),
        d.rng.randint(1, 20),
        d.first_name(),
        d.pick(COLOURS),
        d.rng.randint(1, 40),
    )
    return (
        "It",
        ("name", d.first_name()),
        {
            "species": (["species", "animal", "kind"], kind, [f"is a {kind}"]),
            "age": (["age"], age, [f"is {age} years old", f"is {age}"]),
            "owner": (["owner"], owner, [f"belongs to {owner}", f"is owned by {owner}"]),
            "color": (["color", "colour"], colour, [f"is {colour}", f"has the colour {colour}"]),
            "weight": (["weight", "weight_kg"], weight, [f"weighs {weight} kilos", f"has a weight of {weight} kilos"]),
        },
    )


KINDS = {
    "person": person,
    "person ": person,
    "order": order,
    "event": event,
    "book": book,
    "flight": flight,
    "pet": pet,
}


def record(d: Draw) -> tuple[str, str, dict]:
    """Return (kind, text, record): the text expresses all fields of the record and some more."""
    kind = d.pick(list(KINDS))
    pronoun, head, fields = KINDS[kind](d)
    key, subject, value = head if len(head) == 3 else (*head, head[1])
    told = d.some(list(fields), d.rng.randint(2, min(5, len(fields))))
    text = _tell(d, subject, pronoun, [d.wording(("tell", kind, f), fields[f][2]) for f in told])
    asked = [(key, value)] if d.chance(0.85) else []
    asked += [(d.pick(fields[f][0]), fields[f][1]) for f in told if d.chance(0.8)]
    if not asked:
        asked = [(key, value)]
    if d.chance(0.4):
        asked = d.shuffled(asked)
    return kind.strip(), text, dict(asked)


def _tell(d: Draw, subject: str, pronoun: str, predicates: list[str]) -> str:
    """Write `Ada is 36 and lives in Paris. They work ...`: one to three predicates per sentence."""
    sentences, who = [], subject
    while predicates:
        taken = [predicates.pop(0) for _ in range(min(len(predicates), d.pick([1, 1, 2, 2, 3])))]
        sentences.append(f"{who} {listed(taken)}.")
        who = subject if d.chance(0.5) else pronoun
    return " ".join(sentences)
