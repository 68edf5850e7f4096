"""Extract nested, typed records from texts, and generate a record again as long as it holds what its text does not.

    ramiform run examples/agents/extract.py

The grammar keeps to the type: bounds, a date of the year 2026, one of three kinds. What it cannot know is whether the
text says so; `check` tells. The texts run together, and only those that fail are generated again.
"""

from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from rich.pretty import pprint

import ramiform
from ramiform import ProgramState, gen


class Person(BaseModel):
    name: str
    city: str


class Order(BaseModel):
    order_id: Annotated[str, Field(pattern=r"^[A-Z]{2}\d+$")]
    item: str
    quantity: Annotated[int, Field(ge=1, le=60)]
    price: Decimal
    customer: Person


class Event(BaseModel):
    event: str
    type: Literal["concert", "lecture", "workshop"]
    date: Annotated[date, Field(ge=date(2026, 1, 1), le=date(2026, 12, 31))]
    guests: Annotated[int, Field(ge=1, le=999)]
    host: Person


TEXTS: list[tuple[type[BaseModel], str]] = [
    (Order, "Order XK4071 is for 3 pieces and asks for the lamp. It costs 49.95 euros. It was placed by Ada Brown. "
     "Ada Brown lives in Paris."),
    (Event, "The Harlow Lecture takes place on 2026-12-05. It is a lecture and has 64 guests. It is hosted by "
     "Marcus Lind. Marcus Lind lives in Oslo."),
    (Event, "The Velburg Concert takes place on 2026-06-06. It is a concert and has 120 guests. It is hosted by "
     "Nadia Haddad. Nadia Haddad lives in Cairo."),
]  # fmt: skip


def keys(record: type[BaseModel]) -> str:
    """Return the names of the fields, with those of nested records."""
    fields = {name: field.annotation for name, field in record.model_fields.items()}
    return ", ".join(f"{name} (with {keys(Person)})" if kind is Person else name for name, kind in fields.items())


def leaves(value: Any) -> list[str]:
    """Return the strings and numbers of JSON, as texts."""
    return [leaf for member in value.values() for leaf in leaves(member)] if isinstance(value, dict) else [str(value)]


@ramiform.function
def extract(s: ProgramState, record: type[BaseModel], text: str) -> None:
    def is_told(found: BaseModel) -> None:
        if untold := [leaf for leaf in leaves(found.model_dump(mode="json")) if leaf not in text]:
            raise ValueError(f"the text does not tell of {', '.join(untold)}")

    s += f"Text: {text}\nJSON with {keys(record)}:"
    s += gen("found", schema=record, check=is_told, retries=20)


if __name__ == "__main__":
    batch = [{"record": record, "text": text} for record, text in TEXTS]
    for state in extract.run_batch(batch, temperature=0.8, seed=1):
        pprint(state["found"], expand_all=True)
        *invalid, _ = state.get_meta_info("found")["attempts"]
        for attempt in invalid:
            print(f"  generated again: {attempt['error']}")
