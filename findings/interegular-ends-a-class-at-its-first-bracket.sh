#!/usr/bin/env bash
# interegular 0.3.3 ends a character class at a bracket that is its first member: `[]a]`, in re the class of "]" and "a", becomes an empty class and the
# text "a]", which nothing matches, and `[^]]`, in re all but "]", becomes any character and then "]". No error is raised. POSIX, re, Rust's regex and PCRE read
# the first bracket as a member; interegular agrees where it is escaped. Seen with Python 3.11.
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
for pattern, text in [("[]a]", "a"), ("[]a]", "]"), ("[^]]", "x"), ("[^]]", "x]"), (r"[\]a]", "]"), (r"[^\]]", "x")]:
    own = interegular.parse_pattern(pattern).to_fsm()
    seen.append((re.fullmatch(pattern, text) is not None, own.accepts(text)))
    print(f"{pattern:6} {text!r:4} re.fullmatch {seen[-1][0]}, interegular {seen[-1][1]}")
empty = interegular.parse_pattern("[]a]").to_fsm().empty()
print(f"[]a] accepts no text at all: {empty}")
raise SystemExit(not (seen == [(True, False), (True, False), (True, False), (False, True), (True, True), (True, True)] and empty))
PY
