"""Retrieve the passages of a folder that fit a question best, and answer from them.

    ramiform run examples/agents/rag.py ["Who is the mayor of Velburg?"] [FOLDER]

Passages are ranked by BM25 over their words, in plain Python; the two best are in the prompt. The names of those that
contain the answer are printed beside it.
"""

import math
import re
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

import ramiform
from ramiform import ProgramState, gen

FOLDER = Path(__file__).parent / "texts"
QUESTIONS = ["Who is the mayor of Velburg?", "What does Harlow make?", "How old is Nadia Haddad?",
             "What is the job of Tom Weber?", "When was Brinwick founded?"]  # fmt: skip


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


class Passages:
    """Texts of a folder by name, ranked by BM25 (Robertson and Zaragoza 2009, section 3)."""

    def __init__(self, folder: Path) -> None:
        self.texts = {path.name: path.read_text().strip() for path in sorted(folder.glob("*.txt"))}
        self.counts = {name: Counter(words(text)) for name, text in self.texts.items()}
        self.num_containing = Counter(word for counts in self.counts.values() for word in counts)
        self.mean_length = sum(map(Counter.total, self.counts.values())) / len(self.counts)

    def score(self, name: str, question: str, k1: float = 1.2, b: float = 0.75) -> float:
        counts, total = self.counts[name], 0.0
        for word in words(question):
            rarity = math.log(
                1 + (len(self.texts) - self.num_containing[word] + 0.5) / (self.num_containing[word] + 0.5)
            )
            length = 1 - b + b * counts.total() / self.mean_length
            total += rarity * counts[word] * (k1 + 1) / (counts[word] + k1 * length)
        return total

    def best(self, question: str, size: int) -> list[str]:
        return sorted(self.texts, key=lambda name: self.score(name, question), reverse=True)[:size]


@ramiform.function
def answer(s: ProgramState, question: str, passages: Passages, size: int = 2) -> None:
    s["retrieved"] = passages.best(question, size)
    s += "Passage: " + " ".join(passages.texts[name] for name in s["retrieved"])
    s += f"\nQuestion: {question}\nAnswer:" + gen("answer", max_tokens=16, stop="\n")


if __name__ == "__main__":
    passages = Passages(Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
    asked = sys.argv[1:2] or QUESTIONS
    states = answer.run_batch([{"question": question, "passages": passages} for question in asked], temperature=0)
    table = Table("question", "answer", "found in", "retrieved")
    for question, state in zip(asked, states, strict=True):
        text = state["answer"].strip()
        sources = [name for name in state["retrieved"] if text in passages.texts[name]]
        table.add_row(question, text, ", ".join(sources), ", ".join(state["retrieved"]))
    Console(width=120).print(table)
