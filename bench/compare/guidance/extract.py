"""Extract a nested record: the schema constrains the text; the program parses it."""

import sys

from guidance import json, models
from tasks import TEXT, Record

lm = models.Transformers(sys.argv[1], echo=False)
lm += f"Text: {TEXT}\nJSON with the key person (with name, age, city and job): "
lm += json("record", schema=Record, temperature=0, max_tokens=80)
print(Record.model_validate_json(lm["record"]).model_dump_json())
