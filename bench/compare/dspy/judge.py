"""Judge one text by several criteria: output fields of one signature, answered by one call."""

import json
from typing import Literal

import dspy
from connection import connect
from tasks import CRITERIA, REVIEW

connect(temperature=0)
judge = dspy.Signature(
    {"text": (str, dspy.InputField())}
    | {name: (Literal[tuple(labels)], dspy.OutputField()) for name, labels in CRITERIA.items()},
    "Judge the text.",
)
verdict = dspy.Predict(judge)(text=REVIEW)
print(json.dumps({name: verdict[name] for name in CRITERIA}))
