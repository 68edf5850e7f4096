"""Summarise documents one after the other behind shared examples, then ask a question about the summaries."""

import json
import sys

from guidance import gen, models
from tasks import DOCUMENTS, EXAMPLES, QUESTION

empty = models.Transformers(sys.argv[1], echo=False)
shared = empty + "".join(f"Text: {text}\nSummary: {summary}\n\n" for text, summary in EXAMPLES)
summaries = [
    (shared + f"Text: {text}\nSummary:" + gen("summary", max_tokens=24, stop="\n", temperature=0))["summary"]
    for text in DOCUMENTS
]
lm = empty + "Documents:\n" + "".join(f"[{n}]{summary}\n" for n, summary in enumerate(summaries, start=1))
lm += f"Question: {QUESTION}\nAnswer:" + gen("answer", max_tokens=16, stop=["\n", " ["], temperature=0)
print(json.dumps(lm["answer"].strip()))
