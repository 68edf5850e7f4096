#!/usr/bin/env bash
# llguidance 1.9.1 reports a captured rule at places where the rule could have ended, not where it did. `start: x y` with `x[capture]: "a"+` and
# `y: "a" "b"` has one reading of aaab: x is aa. The interpreter reports aa and then aaa, which no reading has, so the last report is not the
# answer. For `start: x "b"` and aab it reports a and aa. With x as one regular expression, /a+/, it reports aa alone. Seen with Python 3.11
# and numpy 2.3.4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q llguidance==1.9.1 numpy==2.3.4
venv/bin/python - <<'PY'
import json

from llguidance import LLInterpreter, LLMatcher, LLTokenizer

TOKENIZER = LLTokenizer("byte")


def captured(rules: str, text: str) -> list[str]:
    grammar = LLMatcher.grammar_from_lark("%llguidance {}\n" + rules)
    interpreter = LLInterpreter(TOKENIZER, grammar, enable_backtrack=False, enable_ff_tokens=False, log_level=0)
    interpreter.start_without_prompt()
    events = []
    for token in [*TOKENIZER.tokenize_str(text), None]:
        events += json.loads(interpreter.compute_mask()[1])["progress"]
        if token is not None:
            interpreter.commit_token(token)
    return [event["str"] for event in events if event["object"] == "capture"]


SEEN = [
    ('start: x y\nx[capture]: "a"+\ny: "a" "b"\n', "aaab", ["aa", "aaa"]),
    ('start: x "b"\nx[capture]: "a"+\n', "aab", ["a", "aa"]),
    ('start: x "b"\nx[capture]: /a+/\n', "aab", ["aa"]),
]
found = [captured(rules, text) for rules, text, _ in SEEN]
for (rules, text, _), texts in zip(SEEN, found):
    print(text, texts, "of", rules.splitlines())
raise SystemExit(found != [texts for _, _, texts in SEEN])
PY
