"""Answer a question with tools: a loop of the program's own, and a pattern for each tool's arguments."""

import json
import sys

import sglang as sgl
from tasks import SUM, get_weather, multiply

TOOLS = {"get_weather": get_weather, "multiply": multiply}
SCHEMAS = """{"name": "get_weather", "description": "Get the weather of a city", "parameters": {"city": "string"}}
{"name": "multiply", "description": "Multiply two numbers", "parameters": {"a": "integer", "b": "integer"}}"""
CALL = (
    r'\{"name": "(get_weather", "arguments": \{"city": "[A-Za-z ]{1,30}"'
    r'|multiply", "arguments": \{"a": [0-9]{1,9}, "b": [0-9]{1,9})\}\}'
)


@sgl.function
def agent(s, question, max_steps=4):
    s += f"<|system|>\nYou are a helpful assistant.\n\nTools:\n{SCHEMAS}<|end|>\n"
    s += f"<|user|>\n{question}<|end|>\n<|assistant|>\n"
    for step in range(max_steps):
        s += sgl.gen(f"turn_{step}", max_tokens=60, stop="<tool_call>")
        s["answer"] = s[f"turn_{step}"]
        if s.get_meta_info(f"turn_{step}")["finish_reason"].get("matched") != "<tool_call>":
            return
        s += "<tool_call>\n" + sgl.gen(f"call_{step}", max_tokens=80, regex=CALL)
        call = json.loads(s[f"call_{step}"])
        result = TOOLS[call["name"]](**call["arguments"])
        s += f"\n</tool_call><|end|>\n<|tool|>\n{json.dumps(result)}<|end|>\n<|assistant|>\n"


sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))
print(json.dumps(agent.run(SUM, temperature=0)["answer"]))
