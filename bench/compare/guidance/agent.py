"""Answer a question with tools: a loop of the program's own; a turn is a call of the grammar's, or words."""

import json
import sys

import guidance
from guidance import gen, models, regex, select, special_token, with_temperature
from tasks import SUM, get_weather, multiply

TOOLS = {"get_weather": get_weather, "multiply": multiply}
SCHEMAS = """{"name": "get_weather", "description": "Get the weather of a city", "parameters": {"city": "string"}}
{"name": "multiply", "description": "Multiply two numbers", "parameters": {"a": "integer", "b": "integer"}}"""


@guidance(stateless=True)
def turn(lm, step):
    weather = '{"name": "get_weather", "arguments": {"city": "' + regex("[A-Za-z ]{1,30}") + '"}}'
    product = '{"name": "multiply", "arguments": {"a": ' + regex("[0-9]{1,9}") + ', "b": ' + regex("[0-9]{1,9}") + "}}"
    call = special_token("<tool_call>") + "\n" + select([weather, product], name=f"call_{step}")
    return lm + with_temperature(select([call, gen("answer", regex=r"[^\n{]{1,200}")]), 0)


@guidance
def agent(lm, question, max_steps=4):
    lm += f"<|system|>\nYou are a helpful assistant.\n\nTools:\n{SCHEMAS}<|end|>\n"
    lm += f"<|user|>\n{question}<|end|>\n<|assistant|>\n"
    for step in range(max_steps):
        lm += turn(step)
        if f"call_{step}" not in lm:
            return lm
        call = json.loads(lm[f"call_{step}"])
        result = TOOLS[call["name"]](**call["arguments"])
        lm += f"\n</tool_call><|end|>\n<|tool|>\n{json.dumps(result)}<|end|>\n<|assistant|>\n"
    return lm


lm = models.Transformers(sys.argv[1], echo=False) + agent(SUM)
print(json.dumps(lm["answer"]))
