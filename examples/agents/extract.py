"""Extract records from sentences: each is generated under a JSON schema, so it always parses; all run together.

ramiform run examples/agents/extract.py
"""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "city": {"type": "string"},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "married"],
    "additionalProperties": False,
}
TEXTS = [
    "Ada Brown is 36 years old. She lives in Paris. She is not married.",
    "Marcus Lind comes from Oslo. He is married and turned 51 this year.",
    "Nadia Haddad is aged 24, is not married and has a flat in Cairo.",
]


@ramiform.function
def extract(s: ProgramState, text: str) -> None:
    s += f"Text: {text}\nFields: {', '.join(PERSON['properties'])}\nJSON:"
    s += gen("record", max_tokens=100, json_schema=json.dumps(PERSON))


if __name__ == "__main__":
    states = extract.run_batch([{"text": text} for text in TEXTS], temperature=0, progress_bar=True)
    table = Table(*PERSON["properties"])
    for state in states:
        table.add_row(*(str(value) for value in json.loads(state["record"]).values()))
    Console().print(table)
