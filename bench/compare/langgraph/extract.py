"""Extract a nested record: one node, whose model is asked for structured output."""

import sys
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from tasks import TEXT, Record

model = ChatOpenAI(model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0, max_tokens=80)
reader = model.with_structured_output(Record)


class State(TypedDict, total=False):
    text: str
    record: Record


def extract(state: State) -> State:
    question = f"Extract person (with name, age, city and job) from the text as JSON.\n{state['text']}"
    return {"record": reader.invoke(question)}


graph = StateGraph(State)
graph.add_node(extract)
graph.add_edge(START, "extract")
graph.add_edge("extract", END)
print(graph.compile().invoke({"text": TEXT})["record"].model_dump_json())
