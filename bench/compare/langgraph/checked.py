"""Extract a record whose name has to stand in the text: a conditional edge goes back to the model."""

import json
import sys
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from tasks import ATTEMPTS, NAMES, TEMPERATURE, Person, is_named, text_about

model = ChatOpenAI(
    model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=TEMPERATURE, max_tokens=80
)
reader = model.with_structured_output(Person, include_raw=True)


class State(TypedDict, total=False):
    text: str
    attempts: int
    person: Person | None


def extract(state: State) -> State:
    answer = reader.invoke(f"Extract name, age, city and job from the text as JSON.\n{state['text']}")
    return {"person": answer["parsed"], "attempts": state.get("attempts", 0) + 1}


def check(state: State) -> str:
    if state["person"] is not None and is_named(state["text"], state["person"].name):
        return END
    if state["attempts"] == ATTEMPTS:
        raise ValueError(f"no valid answer in {ATTEMPTS} attempts")
    return "extract"


graph = StateGraph(State)
graph.add_node(extract)
graph.add_edge(START, "extract")
graph.add_conditional_edges("extract", check, ["extract", END])
states = graph.compile().batch([{"text": text_about(name)} for name in NAMES])
print(json.dumps([state["person"].name for state in states]))
