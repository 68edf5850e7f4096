"""Extract a record whose name has to stand in the text; an invalid one is removed and generated again."""

import json
import sys

from tasks import ATTEMPTS, NAMES, TEMPERATURE, Person, is_named, text_about

import ramiform
from ramiform import ProgramState, gen


@ramiform.function
def checked(s: ProgramState, text: str) -> None:
    s += f"Text: {text}\nJSON with name, age, city and job:"
    s += gen(
        "person", max_tokens=80, schema=Person, check=lambda person: is_named(text, person.name), retries=ATTEMPTS - 1
    )


ramiform.set_default_backend(ramiform.RuntimeEndpoint(sys.argv[1]))
states = checked.run_batch([{"text": text_about(name)} for name in NAMES], temperature=TEMPERATURE)
print(json.dumps([state["person"].name for state in states]))
