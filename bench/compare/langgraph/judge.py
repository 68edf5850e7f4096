"""Judge one text by several criteria: a branch of the graph for each, whose label is structured output."""

import json
import operator
import sys
from typing import Annotated, Literal, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from pydantic import create_model
from tasks import CRITERIA, REVIEW

model = ChatOpenAI(model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0, max_tokens=24)


class State(TypedDict, total=False):
    text: str
    labels: Annotated[dict[str, str], operator.or_]


def judge(name: str, labels: list[str]):
    reader = model.with_structured_output(create_model(name, label=Literal[tuple(labels)]))

    def node(state: State) -> State:
        return {"labels": {name: reader.invoke(f"Text: {state['text']}\n{name} ({', '.join(labels)}):").label}}

    return node


graph = StateGraph(State)
for name, labels in CRITERIA.items():
    graph.add_node(name, judge(name, labels))
    graph.add_edge(START, name)
print(json.dumps(graph.compile().invoke({"text": REVIEW})["labels"]))
