"""Answer a question with tools: the module does the loop, and a last call extracts the answer."""

import json

import dspy
from connection import connect
from tasks import SUM, get_weather, multiply

connect(temperature=0)
agent = dspy.ReAct("question -> answer", tools=[get_weather, multiply], max_iters=4)
print(json.dumps(agent(question=SUM).answer))
