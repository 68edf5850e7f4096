"""Summarise documents by `Send`, one node run for each, then ask a question about the summaries."""

import json
import operator
import sys
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from tasks import DOCUMENTS, EXAMPLES, QUESTION

model = ChatOpenAI(model="ramiform-small", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0, max_tokens=24)
SHOWN = [
    turn
    for text, summary in EXAMPLES
    for turn in (("user", f"Summarize in one sentence: {text}"), ("assistant", summary))
]


class State(TypedDict, total=False):
    documents: list[str]
    summaries: Annotated[list[str], operator.add]
    answer: str


class Document(TypedDict):
    text: str


def scatter(state: State) -> list[Send]:
    return [Send("summarise", {"text": text}) for text in state["documents"]]


def summarise(document: Document) -> State:
    return {"summaries": [model.invoke([*SHOWN, ("user", f"Summarize in one sentence: {document['text']}")]).content]}


def answer(state: State) -> State:
    lines = "\n".join(f"[{n}] {summary}" for n, summary in enumerate(state["summaries"], start=1))
    return {"answer": model.invoke(f"Documents:\n{lines}\n\nQuestion: {QUESTION}").content}


graph = StateGraph(State)
graph.add_node(summarise)
graph.add_node(answer)
graph.add_conditional_edges(START, scatter, ["summarise"])
graph.add_edge("summarise", "answer")
graph.add_edge("answer", END)
print(json.dumps(graph.compile().invoke({"documents": DOCUMENTS})["answer"]))
