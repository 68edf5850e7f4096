#!/usr/bin/env bash
# interegular 0.3.3 makes an automaton of a pattern that ends in a look-ahead, and the automaton reads on: `a(?!b)` does not accept "a", which
# re.fullmatch does, and accepts "ac"; `a(?=b)` accepts "ab". Where a text goes on behind the look-ahead both agree; where it may
# end there (`a(?!b).*` and "a"), interegular does not accept that either. Who constrains text by the automaton, or compares terminals by it, gets another language without a word.
# Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q interegular==0.3.3
venv/bin/python - <<'PY'
import re
import interegular

seen = []
for pattern, text in [("a(?!b)", "a"), ("a(?!b)", "ac"), ("a(?=b)", "ab"), ("a(?!b).*", "a"), ("a(?!b).*", "ac")]:
    own = interegular.parse_pattern(pattern).to_fsm().accepts(text)
    seen.append((re.fullmatch(pattern, text) is not None, own))
    print(f"{pattern:10} {text!r:5} re.fullmatch {seen[-1][0]}, interegular {seen[-1][1]}")
raise SystemExit(seen != [(True, False), (False, True), (False, True), (True, False), (True, True)])
PY
