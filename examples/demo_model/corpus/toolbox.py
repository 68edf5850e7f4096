"""Tools of the corpus: names, parameters, requests of users, and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .draw import Draw
from .records import ITEMS, date, title
from .world import COUNTRIES

SLOTS: dict[str, tuple[str, Callable[[Draw], object]]] = {
    "city": ("string", lambda d: d.city()),
    "origin": ("string", lambda d: d.city()),
    "destination": ("string", lambda d: d.city()),
    "name": ("string", lambda d: d.person()),
    "to": ("string", lambda d: d.first_name()),
    "recipient": ("string", lambda d: d.first_name()),
    "minutes": ("integer", lambda d: d.number(2, 180)),
    "amount": ("integer", lambda d: d.number(2, 5000)),
    "from_currency": ("string", lambda d: d.pick(CURRENCIES)),
    "to_currency": ("string", lambda d: d.pick(CURRENCIES)),
    "country": ("string", lambda d: d.pick(COUNTRIES).name if d.chance(0.5) else d.place()),
    "title": ("string", title),
    "date": ("string", date),
    "time": ("string", lambda d: f"{d.rng.randint(6, 22)}:{d.pick(['00', '15', '30', '45'])}"),
    "item": ("string", lambda d: d.noun(ITEMS)),
    "quantity": ("integer", lambda d: d.number(2, 80)),
    "order_id": ("string", lambda d: d.code()),
    "language": ("string", lambda d: d.pick(["French", "German", "Italian", "Spanish", "Dutch", "Polish", "Greek"])),
    "word": ("string", lambda d: d.noun(ITEMS)),
    "song": ("string", title),
    "room": ("string", lambda d: d.pick(ROOMS)),
    "temperature": ("integer", lambda d: d.rng.randint(14, 28)),
    "people": ("integer", lambda d: d.rng.randint(2, 12)),
    "symbol": ("string", lambda d: d.code()[:2] + "X"),
    "low": ("integer", lambda d: d.rng.randint(1, 9)),
    "high": ("integer", lambda d: d.number(10, 999)),
    "message": ("string", lambda d: d.pick(MESSAGES)),
    "subject": ("string", lambda d: d.pick(SUBJECTS)),
    "entity": ("string", lambda d: d.place()),
    "a": ("integer", lambda d: d.number(2, 999)),
    "b": ("integer", lambda d: d.number(2, 999)),
    "brightness": ("integer", lambda d: d.number(1, 100)),
    "on": ("boolean", lambda d: d.chance(0.5)),
}
CURRENCIES = "EUR USD GBP JPY CHF SEK NOK PLN CAD AUD".split()
ROOMS = "kitchen|bedroom|bathroom|office|hall|garage|living room".split("|")
MESSAGES = (
    "I am late|see you tomorrow|the meeting is moved|happy birthday|please call me|dinner is ready|the report is done"
    "|thank you for the help"
).split("|")
SUBJECTS = "holiday plans|the budget|the new project|lunch|the meeting|the invoice|the party|our trip".split("|")
WEATHER = "sunny cloudy rainy windy snowy foggy".split()


@dataclass(frozen=True)
class Skill:
    names: tuple[str, ...]
    description: str
    slots: tuple[str, ...]
    asks: tuple[str, ...]
    result: Callable[[Draw, dict], dict]
    reply: str  # of the arguments and the result


def _s(
    names: str, description: str, slots: str, asks: list[str], result: Callable[[Draw, dict], dict], reply: str
) -> Skill:
    return Skill(tuple(names.split()), description, tuple(slots.split()), tuple(asks), result, reply)


def ok(d: Draw, a: dict) -> dict:
    return {"status": "ok"}


SKILLS = [
    _s(
        "get_weather weather current_weather",
        "Get the weather of a city",
        "city",
        [
            "What is the weather in {city}?",
            "How is the weather in {city} today?",
            "Is it raining in {city}?",
            "Tell me the weather in {city}.",
            "What's the weather like in {city}?",
        ],
        lambda d, a: {"weather": d.pick(WEATHER), "temperature": d.rng.randint(-9, 38)},
        "It is {weather} in {city}, with {temperature} degrees.",
    ),
    _s(
        "get_forecast forecast",
        "Get the forecast of a city for a date",
        "city date",
        [
            "What will the weather be in {city} on {date}?",
            "Forecast for {city} on {date}, please.",
            "Will it be nice in {city} on {date}?",
        ],
        lambda d, a: {"weather": d.pick(WEATHER)},
        "It will be {weather} in {city} on {date}.",
    ),
    _s(
        "add add_numbers sum",
        "Add two numbers",
        "a b",
        ["What is {a} plus {b}?", "Add {a} and {b}.", "What is the sum of {a} and {b}?"],
        lambda d, a: {"result": a["a"] + a["b"]},
        "{a} plus {b} is {result}.",
    ),
    _s(
        "multiply times",
        "Multiply two numbers",
        "a b",
        ["What is {a} times {b}?", "Multiply {a} by {b}.", "What is {a} multiplied by {b}?"],
        lambda d, a: {"result": a["a"] * a["b"]},
        "{a} times {b} is {result}.",
    ),
    _s(
        "lookup search wiki",
        "Look up an entity",
        "entity",
        ["Look up {entity}.", "Search for {entity}.", "What do you find about {entity}?", "Find out about {entity}."],
        lambda d, a: {
            "text": f"{a['entity']} is {d.pick(['a town', 'a river', 'a company', 'a singer', 'a mountain'])}"
        },
        "I found this: {text}.",
    ),
    _s(
        "send_email email",
        "Send an email",
        "to subject",
        [
            "Send an email to {to} about {subject}.",
            "Email {to} about {subject}.",
            "Write {to} an email about {subject}.",
        ],
        ok,
        "I sent an email to {to} about {subject}.",
    ),
    _s(
        "send_message message text_to",
        "Send a text message",
        "recipient message",
        [
            "Send {recipient} the message: {message}.",
            "Text {recipient}: {message}.",
            "Tell {recipient} this: {message}.",
        ],
        ok,
        "I sent the message to {recipient}.",
    ),
    _s(
        "convert_currency exchange",
        "Convert money between currencies",
        "amount from_currency to_currency",
        [
            "Convert {amount} {from_currency} to {to_currency}.",
            "How much is {amount} {from_currency} in {to_currency}?",
            "What are {amount} {from_currency} in {to_currency}?",
        ],
        lambda d, a: {"result": d.number(2, 9000)},
        "{amount} {from_currency} are {result} {to_currency}.",
    ),
    _s(
        "set_timer timer start_timer",
        "Set a timer",
        "minutes",
        [
            "Set a timer for {minutes} minutes.",
            "Start a timer of {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "Tell me when {minutes} minutes are over.",
        ],
        ok,
        "The timer is set for {minutes} minutes.",
    ),
    _s(
        "set_alarm alarm",
        "Set an alarm",
        "time",
        ["Set an alarm for {time}.", "Wake me up at {time}.", "I have to get up at {time}."],
        ok,
        "The alarm is set for {time}.",
    ),
    _s(
        "get_population population",
        "Get the population of a country",
        "country",
        ["How many people live in {country}?", "What is the population of {country}?"],
        lambda d, a: {"population": d.number(1, 900) * 1000000},
        "{population} people live in {country}.",
    ),
    _s(
        "get_capital capital_of",
        "Get the capital of a country",
        "country",
        ["What is the capital of {country}?", "Which city is the capital of {country}?"],
        lambda d, a: {"capital": d.city()},
        "The capital of {country} is {capital}.",
    ),
    _s(
        "create_event add_event calendar",
        "Add an event to the calendar",
        "title date",
        [
            "Put {title} into my calendar on {date}.",
            "Add the event {title} on {date}.",
            "Create an event called {title} on {date}.",
        ],
        ok,
        "{title} is in your calendar on {date}.",
    ),
    _s(
        "book_table reserve_table",
        "Book a table in a restaurant",
        "people time",
        [
            "Book a table for {people} people at {time}.",
            "I want a table for {people} at {time}.",
            "Reserve a table for {people} at {time}.",
        ],
        lambda d, a: {"table": d.rng.randint(1, 40)},
        "Table {table} is booked for {people} people at {time}.",
    ),
    _s(
        "book_flight find_flight flights",
        "Find a flight",
        "origin destination",
        [
            "Find a flight from {origin} to {destination}.",
            "I want to fly from {origin} to {destination}.",
            "Book a flight from {origin} to {destination}.",
        ],
        lambda d, a: {"flight": d.code()},
        "Flight {flight} goes from {origin} to {destination}.",
    ),
    _s(
        "find_train trains",
        "Find a train",
        "origin destination time",
        [
            "Is there a train from {origin} to {destination} at {time}?",
            "Find a train from {origin} to {destination} at {time}.",
        ],
        lambda d, a: {"train": d.code()},
        "Train {train} goes from {origin} to {destination} at {time}.",
    ),
    _s(
        "order_item buy order",
        "Order an item",
        "item quantity",
        [
            "Order {quantity} of the item {item}.",
            "Buy {quantity} times the item {item}.",
            "I need {quantity} pieces of the item {item}.",
        ],
        lambda d, a: {"order_id": d.code()},
        "I ordered {quantity} pieces of the item {item}. The order is {order_id}.",
    ),
    _s(
        "order_status track_order",
        "Get the status of an order",
        "order_id",
        ["Where is my order {order_id}?", "What is the status of order {order_id}?", "Track order {order_id}."],
        lambda d, a: {"status": d.pick(["shipped", "packed", "delivered", "lost", "late"])},
        "Order {order_id} is {status}.",
    ),
    _s(
        "translate translate_word",
        "Translate a word",
        "word language",
        [
            "Translate the word {word} into {language}.",
            "What is {word} in {language}?",
            "How do you say {word} in {language}?",
        ],
        lambda d, a: {"translation": d.place().lower()},
        "In {language}, {word} is {translation}.",
    ),
    _s(
        "play_song play play_music",
        "Play a song",
        "song",
        ["Play {song}.", "Play the song {song}.", "I want to hear {song}."],
        ok,
        "Now playing {song}.",
    ),
    _s(
        "set_temperature heat",
        "Set the temperature of a room",
        "room temperature",
        [
            "Set the {room} to {temperature} degrees.",
            "Make the {room} {temperature} degrees warm.",
            "I want {temperature} degrees in the {room}.",
        ],
        ok,
        "The {room} is set to {temperature} degrees.",
    ),
    _s(
        "set_light light switch_light",
        "Set the brightness of a room's light",
        "room brightness",
        [
            "Set the light in the {room} to {brightness} percent.",
            "Light in the {room} to {brightness} percent, please.",
        ],
        ok,
        "The light in the {room} is at {brightness} percent.",
    ),
    _s(
        "get_stock_price stock_price",
        "Get the price of a stock",
        "symbol",
        ["What is the price of {symbol}?", "How much is a share of {symbol}?", "What does the stock {symbol} cost?"],
        lambda d, a: {"price": d.number(2, 900)},
        "The stock {symbol} costs {price} dollars.",
    ),
    _s(
        "random_number roll",
        "Draw a random number",
        "low high",
        ["Give me a random number between {low} and {high}.", "Draw a number from {low} to {high}."],
        lambda d, a: {"number": d.rng.randint(a["low"], a["high"])},
        "The number is {number}.",
    ),
    _s(
        "find_contact get_phone contact",
        "Find the phone number of a person",
        "name",
        ["What is the phone number of {name}?", "Find the number of {name}.", "I want to call {name}."],
        lambda d, a: {"phone": f"{d.number(100, 999)} {d.number(1000, 9999)}"},
        "The phone number of {name} is {phone}.",
    ),
    _s(
        "get_time time_in clock",
        "Get the time in a city",
        "city",
        ["What time is it in {city}?", "How late is it in {city}?", "Tell me the time in {city}."],
        lambda d, a: {"time": f"{d.rng.randint(0, 23)}:{d.rng.randint(10, 59)}"},
        "It is {time} in {city}.",
    ),
    _s(
        "add_note note remember",
        "Write a note",
        "message",
        ["Write down: {message}.", "Make a note: {message}.", "Note this: {message}."],
        ok,
        "I wrote it down.",
    ),
]
