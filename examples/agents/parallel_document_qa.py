"""Answer questions about several documents: documents are read in parallel, questions are asked in parallel.

    ramiform run examples/agents/parallel_document_qa.py

Each document is a branch, and the branches are concatenated. Then each question is a branch that shares them all. The
shipped model finds answers in a few short documents but names the wrong source. The source printed here is the
document that contains the answer, found by the program.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen

FOLDER = Path(__file__).parent / "texts"
NAMES = ["velburg", "tom_weber", "harlow"]
QUESTIONS = ["Who is the mayor of Velburg?", "What does Tom Weber like?", "Who leads Harlow?",
             "What is Velburg known for?", "Who is the best friend of Tom Weber?"]  # fmt: skip


@ramiform.function
def document_qa(s: ProgramState, documents: Sequence[str], questions: Sequence[str]) -> None:
    s += "Documents:\n"
    readers = s.fork(len(documents))
    readers += [f"[{number}] {text}\n" for number, text in enumerate(documents, start=1)]
    readers.join("concate_and_append")

    asked = s.fork(len(questions))
    asked += [
        f"Question: {question}\nAnswer:" + gen("answer", max_tokens=16, stop=["\n", " ["]) for question in questions
    ]
    asked.join()
    s["answers"] = [answer.strip() for answer in s["answer"]]


if __name__ == "__main__":
    documents = {name: (FOLDER / f"{name}.txt").read_text().strip() for name in NAMES}
    state = document_qa.run(documents=list(documents.values()), questions=QUESTIONS, temperature=0)
    table = Table("question", "answer", "found in")
    for question, answer in zip(QUESTIONS, state["answers"], strict=True):
        table.add_row(question, answer, ", ".join(name for name, text in documents.items() if answer in text))
    Console(width=120).print(table)
    metas = state.get_meta_info("answer")
    cached, prompt = (sum(meta[key] for meta in metas) for key in ("cached_tokens", "prompt_tokens"))
    print(f"{cached} of {prompt} prompt tokens from the cache")
