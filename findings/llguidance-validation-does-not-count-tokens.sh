#!/usr/bin/env bash
# llguidance 1.9.1 counts a rule's `max_tokens` when it makes masks, and not when it validates. For `"a" digits "b"` with
# `digits[max_tokens=3]` over single bytes, `validate_tokens` takes all eight tokens of a123456b; the masks along the same tokens
# refuse the third digit. A server that checks draft tokens by one and samples by the other follows two languages. Seen with
# Python 3.11 and numpy 2.3.4.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q llguidance==1.9.1 numpy==2.3.4
venv/bin/python - <<'PY'
import llguidance.numpy
from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
grammar = LLMatcher.grammar_from_lark('%llguidance {}\nstart: "a" digits "b"\ndigits[max_tokens=3]: /[0-9]+/\n')
matcher = LLMatcher(tokenizer, grammar)
assert not matcher.get_error()
tokens = tokenizer.tokenize_str("a123456b")
validated = matcher.validate_tokens(tokens)
mask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
sampled = 0
for token in tokens:
    llguidance.numpy.fill_next_token_bitmask(matcher, mask)
    if not int(mask[0][token // 32]) >> (token % 32) & 1:
        break
    matcher.consume_token(token)
    sampled += 1
print(f"of {len(tokens)} tokens: validated {validated}, allowed by masks {sampled}")
raise SystemExit((validated, sampled) != (8, 3))
PY
