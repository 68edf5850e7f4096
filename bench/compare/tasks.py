"""Tasks of every framework's program, and the answers that count as right."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0, le=130)]
    city: str
    job: str


class Record(BaseModel):
    person: Person


TEXT = "Nadia Haddad is 51 years old and lives in Oslo. She works as a nurse."
RECORD = {"person": {"name": "Nadia Haddad", "age": 51, "city": "Oslo", "job": "nurse"}}

EXAMPLES = [
    ("Flomes was founded in 1949. Flomes is led by Ada Baker. Flomes makes chocolate.", "Flomes was founded in 1949."),
    ("Mia Cole lives in Paris. Mia Cole likes chess. The dog of Mia Cole is Rex.", "Mia Cole lives in Paris."),
    ("The bridge of Ranwick was built in 1874. Ranwick makes cheese.", "The bridge of Ranwick was built in 1874."),
]
DOCUMENTS = [
    "Nadia Haddad lives in Cairo. Nadia Haddad is 24 years old. Nadia Haddad works as a doctor.",
    "Velburg is known for its glass. The mayor of Velburg is Sofia Quinn. The river Tot flows through Velburg.",
    "Harlow is led by Liam Lind. Harlow makes boats. Harlow has 420 workers.",
    "Tom Weber works as a chef. Tom Weber likes tennis. The best friend of Tom Weber is Marta.",
]
QUESTION, DOCUMENTS_ANSWER = "Who leads Harlow?", "Liam Lind"

REVIEW = "The food was wonderful and the waiter was friendly. I recommend it to everyone."
CRITERIA = {
    "Sentiment": ["positive", "negative"],
    "Urgency": ["urgent", "not urgent"],
    "Topic": ["food", "weather", "travel", "sports"],
}
VERDICTS = {"Sentiment": "positive", "Urgency": "not urgent", "Topic": "food"}


def get_weather(city: str) -> dict[str, object]:
    """Get the weather of a city"""
    return {"weather": "snowy" if city == "Oslo" else "sunny", "temperature": 4 if city == "Oslo" else 21}


def multiply(a: int, b: int) -> dict[str, object]:
    """Multiply two numbers"""
    return {"result": a * b}


SUM, SUM_ANSWER = "What is 37 times 12?", "444"

# At this temperature the model often spells rare names wrong. The check needs no answer key.
NAMES = ["Xandro Quivelbrock", "Threnna Ospilwick", "Zbigniew Krzyk", "Ioveth Dramsley"]
TEMPERATURE, ATTEMPTS = 1.25, 8


def text_about(name: str) -> str:
    return f"{name} is 36 years old and lives in Oslo."


def is_named(text: str, name: str) -> bool:
    return text.startswith(f"{name} is ")
