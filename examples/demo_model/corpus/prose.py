"""Natural sentences, each with the record that it expresses."""

from __future__ import annotations

from collections.abc import Callable

from .draw import Draw
from .records import COLOURS, EVENTS, ITEMS, JOBS, PETS, date, price, title

VALUES: dict[str, Callable[[Draw], object]] = {
    "name": lambda d: d.person() if d.chance(0.6) else d.first_name(),
    "person": lambda d: d.person(),
    "age": lambda d: d.number(18, 95),
    "job": lambda d: d.noun(JOBS),
    "city": lambda d: d.city(),
    "origin": lambda d: d.city(),
    "destination": lambda d: d.city(),
    "company": lambda d: d.place(),
    "quantity": lambda d: d.number(2, 60),
    "item": lambda d: d.noun(ITEMS),
    "price": price,
    "date": date,
    "time": lambda d: f"{d.rng.randint(7, 22)}:{d.pick(['00', '15', '30', '45'])}",
    "year": lambda d: d.number(1850, 2025),
    "pages": lambda d: d.number(60, 990),
    "title": title,
    "people": lambda d: d.rng.randint(2, 12),
    "number": lambda d: d.code(),
    "amount": lambda d: d.number(5, 9000),
    "employees": lambda d: d.number(5, 9000),
    "room": lambda d: d.number(1, 400),
    "pet": lambda d: d.noun(PETS),
    "color": lambda d: d.pick(COLOURS),
    "event": lambda d: d.pick(EVENTS),
    "score": lambda d: d.rng.randint(1, 10),
    "hours": lambda d: d.rng.randint(2, 14),
}
ALIASES = {
    "person": ["name", "author", "founder", "customer"],
    "quantity": ["quantity", "count"],
    "price": ["price", "total"],
}
SENTENCES = [
    "{name} is a {age}-year-old {job} from {city}.",
    "{name}, {age}, lives in {city}.",
    "{name}, a {job} from {city}, is {age} years old.",
    "{name} ({age}) works as a {job} in {city}.",
    "My name is {name}, I am {age} years old and I live in {city}.",
    "Hello, I'm {name}. I am a {job} in {city}.",
    "{name} is {age} years old. She lives in {city} and works as a {job}.",
    "{name} is {age} and lives in {city}. He is a {job}.",
    "At {age}, {name} moved to {city} to work as a {job}.",
    "The {job} {name} lives in {city} and is {age}.",
    "{name} from {city} works for {company}.",
    "{name} joined {company} in {year} as a {job}.",
    "{name} has a {color} {pet}.",
    "{name} ordered {quantity} pieces of the item {item} for {price} euros.",
    "{name} bought a {color} {item} for {price} dollars.",
    "{name} from {city} wants {quantity} pieces of the {item}.",
    "Please send {quantity} pieces of the {item} to {name} in {city}.",
    "Order {number}: {quantity} x {item}, {price} euros, for {name}.",
    "The {color} {item} costs {price} dollars.",
    "Invoice {number} of {company} over {amount} euros is due on {date}.",
    "{company} was founded in {year} by {person} and has {employees} employees.",
    "{company} is a company from {city} with {employees} employees.",
    "{company} is based in {city} and was founded in {year}.",
    "{title} by {person} was published in {year} and has {pages} pages.",
    "In {year}, {person} wrote {title}.",
    "{person} wrote {title}, which has {pages} pages.",
    "On {date}, {name} flew from {origin} to {destination}.",
    "Flight {number} from {origin} to {destination} leaves at {time}.",
    "The train from {origin} to {destination} leaves at {time} and takes {hours} hours.",
    "A table for {people} people on {date} at {time}, please. The name is {name}.",
    "I would like to book a table for {people} people at {time}.",
    "{name} booked room {room} for {date}.",
    "The {event} in {city} is on {date} at {time}.",
    "There is a {event} on {date} in {city}. It starts at {time}.",
    "The meeting with {name} is on {date} at {time} in room {room}.",
    "{name} gave the {item} {score} points.",
    "{name} paid {amount} euros to {company} on {date}.",
]


def told(d: Draw) -> tuple[str, dict]:
    """Return (text, record)."""
    sentence = d.wording("prose", SENTENCES)
    fields = [field.split("}")[0] for field in sentence.split("{")[1:]]
    values = {field: VALUES[field](d) for field in fields}
    record = {d.pick(ALIASES.get(field, [field])): value for field, value in values.items()}
    return sentence.format(**values), record
