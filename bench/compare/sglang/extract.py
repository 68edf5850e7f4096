"""Extract a nested record: the schema constrains the text; the program parses it."""

import json
import sys

import sglang as sgl
from tasks import TEXT, Record


@sgl.function
def extract(s, text):
    s += f"Text: {text}\nJSON with the key person (with name, age, city and job):"
    s += sgl.gen("record", max_tokens=80, json_schema=json.dumps(Record.model_json_schema()))


sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))
print(Record.model_validate_json(extract.run(TEXT, temperature=0)["record"]).model_dump_json())
