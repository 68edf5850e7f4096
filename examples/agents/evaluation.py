"""Measure two prompts of one program on the same questions, and tell whether the difference is more than chance.

ramiform run examples/agents/evaluation.py          # compares the prompts
ramiform eval examples/agents/evaluation.py --html report.html
"""

from collections.abc import Mapping
from typing import Any

import ramiform
from ramiform import ProgramState, gen

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Peru": "Lima", "Spain": "Madrid", "Egypt": "Cairo",
    "Canada": "Ottawa", "Germany": "Berlin", "Greece": "Athens", "Norway": "Oslo", "Kenya": "Nairobi", "Cuba": "Havana",
}  # fmt: skip
PROMPTS = ("Question: What is the capital of {country}?\nAnswer:", "{country}, capital:")

dataset = [{"country": country, "city": city} for country, city in CAPITALS.items()]
options: dict[str, Any] = {"temperature": 0}


@ramiform.function
def program(s: ProgramState, country: str, prompt: str = PROMPTS[0]) -> None:
    s += prompt.format(country=country) + gen("city", max_tokens=8, stop=["\n", "."])


def metric(example: Mapping[str, Any], state: ProgramState) -> dict[str, float]:
    """Return whether the answer is the city, and how many tokens it took."""
    right = state["city"].strip() == example["city"]
    return {"right": right, "tokens": state.get_meta_info("city")["completion_tokens"]}


if __name__ == "__main__":
    first, second = (ramiform.evaluate(program, dataset, metric, prompt=prompt, **options) for prompt in PROMPTS)
    print(first)
    print(second)
    print(first.compare(second))
