"""Extract a record whose name has to stand in the text; an invalid one is removed and generated again."""

import json
import sys

import ramiform
from ramiform import ProgramState, gen

from tasks import ATTEMPTS, NAMES, SEED, TEMPERATURE, Person, text_about


@ramiform.function
def checked(s: ProgramState, text: str) -> None:
    s += f"Text: {text}\nJSON with name, age, city and job:"
    s += gen("person", max_tokens=80, schema=Person, check=lambda person: person.name in text, retries=ATTEMPTS - 1)


ramiform.set_default_backend(ramiform.HttpRuntime(sys.argv[1]))
states = checked.run_batch([{"text": text_about(name)} for name in NAMES], temperature=TEMPERATURE, seed=SEED)
print(json.dumps([state["person"].name for state in states]))
