"""Writes which tokens llama.cpp allows by grammars with tokens: `python -P write_grammars.py LIBRARY`."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from judge import LlamaCpp
from write_pre import OUT, write_model

TOKENS = [*"abc019{}<>/", "\u010a", "\u0120", "ab", "bc", "aab", "<call>", "<think>", "</think>", "<|x|>", "<|end|>"]
TYPES = [1] * (len(TOKENS) - 5) + [4, 3, 3, 3, 3]  # normal, defined by users, control
GRAMMARS = [
    r"root ::= <think> !</think>* </think> [a-c]+",
    r'root ::= <[17]> ("a" | !<[18]>){1,3} <[18]> "b"',
    r'root ::= !<|x|> "ab" | <|x|> [0-9]',
    r'root ::= (<|x|> | "a" <call>)* "c"?',
    r"root ::= call (<|x|> call)*" + "\n" + r'call ::= <call> "{" ([a-c] | call)* "}"',
    r'root ::= "a"* !<call>',
    r"root ::= !<think>{2} [abc]",
    r'root ::= "<" <call> ">" | <call>',
    r"root ::= <nothing>",
    r"root ::= <ab>",
    r"root ::= <think",
]


def main(library: str) -> None:
    judge, draw, rows = LlamaCpp(Path(library)), random.Random(3), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocabulary.gguf"
        write_model(path, "llama-bpe", TOKENS, ["a b", "b c", "a ab"], TYPES)
        for grammar in GRAMMARS:
            rows.append({"grammar": grammar, "walks": judge.walks(path, grammar, draw, 12)})
    lines = ",\n".join(map(json.dumps, rows))
    text = f'{{"tokens": {json.dumps(TOKENS)},\n"types": {TYPES},\n"grammars": [\n{lines}\n]}}\n'
    OUT.with_name("grammars.json").write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
