"""Stream a chat of several turns: each continues from the tokens of those before it, so nothing is sent twice.

ramiform run examples/agents/multi_turn_chat.py ["Hello!" "My name is Tom." ...]
ramiform run examples/agents/multi_turn_chat.py -      # talk to it; an empty line ends
"""

import sys
from collections.abc import Iterable, Iterator

from rich.console import Console

import ramiform
from ramiform import ProgramState, assistant, gen, system, user

TURNS = ["Hello!", "My name is Ada.", "I have a rabbit.", "What is the capital of Japan?", "What is my name?",
         "What pet do I have?", "Thank you!"]  # fmt: skip


def typed() -> Iterator[str]:
    print("you: ", end="", flush=True)
    for line in sys.stdin:
        if not line.strip():
            return
        yield line.strip()
        print("you: ", end="", flush=True)


def given(turns: list[str]) -> Iterator[str]:
    for turn in turns:
        Console(highlight=False).print(f"you: {turn}", style="dim")
        yield turn


@ramiform.function
def chat(s: ProgramState, turns: Iterable[str]) -> None:
    s += system("You are a helpful assistant.")
    s["metas"] = []
    for number, turn in enumerate(turns, start=1):
        s += user(turn)
        s += assistant(gen(f"answer_{number}", max_tokens=60))
        print("model: ", end="")
        for piece in s.text_iter(f"answer_{number}"):
            print(piece, end="", flush=True)
        print()
        s["metas"].append(s.get_meta_info(f"answer_{number}"))


if __name__ == "__main__":
    turns = typed() if sys.argv[1:] == ["-"] else given(sys.argv[1:] or TURNS)
    state = chat.run(turns=turns, temperature=0, stream=True)
    state.sync()
    cached, prompt = (sum(meta[key] for meta in state["metas"]) for key in ("cached_tokens", "prompt_tokens"))
    print(f"{cached} of {prompt} prompt tokens from the cache")
