"""Extract a record whose name has to stand in the text; an invalid one is left in a copy, and another copy is tried."""

import json
import sys

import sglang as sgl
from tasks import ATTEMPTS, NAMES, TEMPERATURE, Person, is_named, text_about


@sgl.function
def checked(s, text):
    s += f"Text: {text}\nJSON with name, age, city and job:"
    for _ in range(ATTEMPTS):
        attempt = s.fork(1)[0]
        attempt += sgl.gen("person", max_tokens=80, json_schema=json.dumps(Person.model_json_schema()))
        try:
            person = Person.model_validate_json(attempt["person"])
        except ValueError:  # cut off by max_tokens
            continue
        if is_named(text, person.name):
            s += attempt["person"]
            s["name"] = person.name
            return
    raise ValueError(f"no valid answer in {ATTEMPTS} attempts")


sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))
states = checked.run_batch([{"text": text_about(name)} for name in NAMES], temperature=TEMPERATURE)
print(json.dumps([state["name"] for state in states]))
