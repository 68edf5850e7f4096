"""Run a long batch that may be killed at any time: started again with its file, it generates only what is missing.

    ramiform run examples/agents/checkpointed_batch.py questions.jsonl     # stop it with Ctrl-C, or kill it
    ramiform run examples/agents/checkpointed_batch.py questions.jsonl     # goes on, within programs too

Every answer is in the file before the program gets it, so the second run takes the same way as the first one, also
where it draws at a temperature above 0.
"""

import sys

import ramiform
from ramiform import ProgramState, gen

COUNTRIES = """Austria Belgium Brazil Canada China Cuba Denmark Egypt Finland France Germany Greece Hungary India
Ireland Italy Japan Kenya Mexico Norway Peru Poland Portugal Spain Sweden Turkey""".split()
FACTS = {"capital": "What is the capital of {}?", "language": "What language is spoken in {}?",
         "money": "What is the currency of {}?"}  # fmt: skip


@ramiform.function
def describe(s: ProgramState, country: str) -> str:
    """Ask three questions, and then whether the model believes its own answer."""
    for name, question in FACTS.items():
        s += f"Question: {question.format(country)}\nAnswer:" + gen(name, max_tokens=12, stop="\n") + "\n"
    s += f"Statement: The capital of {country} is{s['capital']}.\nTrue:" + ramiform.select("sure", [" yes", " no"])
    return ", ".join(s[name].strip() for name in (*FACTS, "sure"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: checkpointed_batch.py FILE: the answers are kept in FILE, e.g. questions.jsonl")
    batch = [{"country": country} for country in COUNTRIES]
    states = describe.run_batch(batch, temperature=0.2, num_threads=2, checkpoint=sys.argv[1], generator_style=True)
    for country, state in zip(COUNTRIES, states, strict=True):
        print(f"{country}: {state.ret_value}", flush=True)
