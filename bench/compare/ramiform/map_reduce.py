"""Summarise documents in branches behind shared examples, then ask a question about the summaries."""

import json
import sys

from tasks import DOCUMENTS, EXAMPLES, QUESTION

import ramiform
from ramiform import ProgramState, gen


@ramiform.function
def map_reduce(s: ProgramState, documents: list[str], question: str) -> None:
    with s.copy() as summaries:
        summaries += "".join(f"Text: {text}\nSummary: {summary}\n\n" for text, summary in EXAMPLES)
        readers = summaries.fork(len(documents))
        readers += [f"Text: {text}\nSummary:" + gen("summary", max_tokens=24, stop="\n") for text in documents]
        readers.join()
    s += "Documents:\n" + "".join(f"[{n}]{summary}\n" for n, summary in enumerate(s["summary"][0], start=1))
    s += f"Question: {question}\nAnswer:" + gen("answer", max_tokens=16, stop=["\n", " ["])


ramiform.set_default_backend(ramiform.HttpRuntime(sys.argv[1]))
print(json.dumps(map_reduce.run(DOCUMENTS, QUESTION, temperature=0)["answer"].strip()))
