"""Find the demonstrations that teach a program its labels, and measure the gain on sentences about others.

    ramiform run examples/agents/optimisation.py [FILE]

The best prompt is kept in FILE; `label.load(FILE)` gives the program with it. Demonstrations are a common prefix of all
calls, so that the runtime computes them once per candidate.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ramiform
from ramiform import ProgramState, gen

SENTENCES = {
    "sports": ["{name} scored two goals in the final.", "The coach praised {name} after the match."],
    "weather": ["The storm reached {place} at night.", "It is sunny and warm in {place}."],
    "food": ["{name} baked a cake with apples.", "The soup in {place} tastes of garlic."],
    "technology": ["The software of {name} has a bug.", "The computer of {name} got an update."],
    "travel": ["{name} booked a hotel in {place}.", "Tourists visit the old town of {place}."],
    "music": ["The band of {name} sang a new song.", "{name} gave a concert in {place}."],
    "money": ["The bank in {place} raised its rates.", "{name} pays high taxes in {place}."],
}
NAMES = {"Zora": "Melun", "Piet": "Varna", "Ilka": "Tromso", "Odin": "Cadiz", "Femi": "Turku", "Runa": "Lugo"}


def cases(names: Sequence[str]) -> list[dict[str, str]]:
    """Return each sentence with each of the names, and its topic."""
    return [
        {"text": text.format(name=name, place=NAMES[name]), "topic": topic}
        for name in names
        for topic, texts in SENTENCES.items()
        for text in texts
    ]


@ramiform.function
def label(s: ProgramState, text: str, demonstrations: Sequence[Mapping[str, Any]] = ()) -> None:
    s += "".join(f"Text: {one['text']}\nLabel: {one['topic']}\n" for one in demonstrations)
    s += f"Text: {text}\nLabel:" + gen("label", max_tokens=4, stop="\n")


def is_right(example: Mapping[str, Any], state: ProgramState) -> bool:
    return bool(state["label"].strip() == example["topic"])


if __name__ == "__main__":
    names = list(NAMES)
    train, held_out = cases(names[:3]), cases(names[3:])
    better = ramiform.optimise(label, train, is_right, num_candidates=12, temperature=0)
    before = ramiform.evaluate(label, held_out, is_right, temperature=0)
    after = ramiform.evaluate(better, held_out, is_right, temperature=0)
    for one in better.argument("demonstrations"):
        print(f"{one['text']} -> {one['topic']}")
    print(after.compare(before))
    if len(sys.argv) > 1:
        better.save(sys.argv[1])
