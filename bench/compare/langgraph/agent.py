"""Answer a question with tools: the prebuilt agent."""

import json
import sys

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from tasks import SUM, get_weather, multiply

model = ChatOpenAI(model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0)
agent = create_react_agent(model, [get_weather, multiply], prompt="You are a helpful assistant.")
print(json.dumps(agent.invoke({"messages": [("user", SUM)]})["messages"][-1].content))
