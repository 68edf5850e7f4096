"""Summarise documents in parallel with shared demonstrations, then ask a question about the summaries."""

import json

import dspy
from connection import connect
from tasks import DOCUMENTS, EXAMPLES, QUESTION

connect(temperature=0)
summarise = dspy.Predict("text -> summary")
summarise.demos = [dspy.Example(text=text, summary=summary).with_inputs("text") for text, summary in EXAMPLES]
answer = dspy.Predict("documents: list[str], question -> answer")

summaries = dspy.Parallel()([(summarise, dspy.Example(text=text).with_inputs("text")) for text in DOCUMENTS])
print(json.dumps(answer(documents=[each.summary for each in summaries], question=QUESTION).answer))
