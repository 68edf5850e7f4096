"""Judge one text by several criteria: each is a branch that selects one of its labels, and none generates."""

import json
import sys

from tasks import CRITERIA, REVIEW

import ramiform
from ramiform import ProgramState, select


@ramiform.function
def judge(s: ProgramState, text: str) -> None:
    s += f"Text: {text}\n"
    judges = s.fork(len(CRITERIA))
    judges += [f"{name}:" + select("label", [f" {label}" for label in labels]) for name, labels in CRITERIA.items()]
    judges.join()


ramiform.set_default_backend(ramiform.HttpRuntime(sys.argv[1]))
labels = judge.run(REVIEW)["label"]
print(json.dumps({name: label.strip() for name, label in zip(CRITERIA, labels, strict=True)}))
