"""Extract a record whose name has to stand in the text: model objects are values, so a loop tries again."""

import json
import sys

import guidance
from guidance import models
from tasks import ATTEMPTS, NAMES, TEMPERATURE, Person, is_named, text_about


def checked(lm, text):
    lm += f"Text: {text}\nJSON with name, age, city and job: "
    for _ in range(ATTEMPTS):
        attempt = lm + guidance.json("person", schema=Person, temperature=TEMPERATURE, max_tokens=80)
        try:
            person = Person.model_validate_json(attempt["person"])
        except ValueError:  # cut off by max_tokens
            continue
        if is_named(text, person.name):
            return person
    raise ValueError(f"no valid answer in {ATTEMPTS} attempts")


empty = models.Transformers(sys.argv[1], echo=False)
print(json.dumps([checked(empty, text_about(name)).name for name in NAMES]))
