"""Summarise documents in branches behind shared examples, then ask a question about the summaries."""

import json
import sys

import sglang as sgl
from tasks import DOCUMENTS, EXAMPLES, QUESTION


@sgl.function
def summarise(s, documents):
    s += "".join(f"Text: {text}\nSummary: {summary}\n\n" for text, summary in EXAMPLES)
    readers = s.fork(len(documents))
    readers += [f"Text: {text}\nSummary:" + sgl.gen("summary", max_tokens=24, stop="\n") for text in documents]
    readers.join()


@sgl.function
def map_reduce(s, documents, question):
    summaries = summarise.run(documents, temperature=0)["summary"]
    s += "Documents:\n" + "".join(f"[{n}]{summary}\n" for n, summary in enumerate(summaries, start=1))
    s += f"Question: {question}\nAnswer:" + sgl.gen("answer", max_tokens=16, stop=["\n", " ["])


sgl.set_default_backend(sgl.RuntimeEndpoint(sys.argv[1]))
print(json.dumps(map_reduce.run(DOCUMENTS, QUESTION, temperature=0)["answer"].strip()))
