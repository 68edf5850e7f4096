"""Answer questions on more text than a prompt should hold: branches summarise documents, one state reads the summaries.

ramiform run examples/agents/map_reduce.py ["Where does Nadia Haddad live?"]
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen

FOLDER = Path(__file__).parent / "texts"
QUESTIONS = ["Where does Nadia Haddad live?", "What is the job of Tom Weber?", "When was Brinwick founded?"]


@ramiform.function
def summarise_and_ask(s: ProgramState, documents: list[str], questions: list[str]) -> None:
    # Map: each branch reads one document. `join` makes a list of what they generated.
    readers = s.fork(len(documents))
    readers += [f"Text: {text}\nSummary:" + gen("summary", max_tokens=24, stop="\n") for text in documents]
    readers.join()
    # Reduce: the summaries are computed once, and every question is a branch behind them.
    s += "".join(f"[{number}]{summary}\n" for number, summary in enumerate(s["summary"], start=1))
    asked = s.fork(len(questions))
    asked += [f"Question: {question}\nAnswer:" + gen("answer", max_tokens=12, stop="\n") for question in questions]
    asked.join()


if __name__ == "__main__":
    documents = [path.read_text().strip() for path in sorted(FOLDER.glob("*.txt"))]
    questions = sys.argv[1:] or QUESTIONS
    state = summarise_and_ask.run(documents, questions, temperature=0)
    for summary in state["summary"]:
        print(summary.strip())
    table = Table("question", "answer")
    for question, answer in zip(questions, state["answer"], strict=True):
        table.add_row(question, answer.strip())
    Console(width=120).print(table)
