"""Extract a nested record: the schema constrains the text, and the variable is a validated `Record`."""

import sys

from tasks import TEXT, Record

import ramiform
from ramiform import ProgramState, gen


@ramiform.function
def extract(s: ProgramState, text: str) -> None:
    s += f"Text: {text}\nJSON with the key person (with name, age, city and job):"
    s += gen("record", max_tokens=80, schema=Record)


ramiform.set_default_backend(ramiform.HttpRuntime(sys.argv[1]))
print(extract.run(TEXT, temperature=0)["record"].model_dump_json())
