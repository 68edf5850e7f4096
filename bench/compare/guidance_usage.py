"""Runs a program of guidance's with a local model, and prints what the model computed as a last line of JSON.

    VENV/bin/python bench/compare/guidance_usage.py PROGRAM.py CHECKPOINT

A generation begins with a forward that reads the prompt, or what of it is not cached; further ones feed generated
tokens back. guidance also computes constant text as it is appended: that counts as prefilled. guidance says itself that
its number of generated tokens may be slightly too high.
"""

from __future__ import annotations

import json
import runpy
import sys
from typing import Any

from guidance.models._base._state import State
from guidance.models._engine import Engine, EngineInterpreter

counts = {"generations": 0, "prompt": 0, "prefilled": 0, "generated": 0}
forwards: list[dict[str, Any]] = []  # of the loop that is running
literal = False
add_usage, append_text = State.add_usage, EngineInterpreter.text


def counted_usage(state: Any, usage: Any) -> None:
    if forwards:
        counts["prefilled"] += forwards[0]["n_tokens"] - forwards[0]["n_cached"]
        if not literal:
            counts["generations"] += 1
            counts["prompt"] += forwards[0]["n_tokens"]
            counts["generated"] += usage.output_tokens
        forwards.clear()
    add_usage(state, usage)


def counted_text(self: Any, *arguments: Any, **options: Any) -> Any:
    global literal
    literal = True
    yield from append_text(self, *arguments, **options)
    literal = False


def count_forwards(engine: type[Engine]) -> None:
    get_logits = engine.get_logits

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        output = get_logits(self, *arguments, **options)
        forwards.append(output)
        return output

    engine.get_logits = counted


State.add_usage, EngineInterpreter.text = counted_usage, counted_text
for engine in Engine.__subclasses__():
    count_forwards(engine)
program, sys.argv = sys.argv[1], sys.argv[1:]
try:
    runpy.run_path(program, run_name="__main__")
finally:
    print(json.dumps(counts))
