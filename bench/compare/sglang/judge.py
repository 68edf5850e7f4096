"""Judge one text by several criteria: each is a branch that selects one of its labels."""

import json
import sys

import sglang as sgl
from tasks import CRITERIA, REVIEW


@sgl.function
def judge(s, text):
    s += f"Text: {text}\n"
    judges = s.fork(len(CRITERIA))
    for branch, (name, labels) in zip(judges, CRITERIA.items(), strict=True):
        branch += f"{name}:" + sgl.select("label", [f" {label}" for label in labels])
    judges.join()


sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))
labels = judge.run(REVIEW)["label"]
print(json.dumps({name: label.strip() for name, label in zip(CRITERIA, labels, strict=True)}))
