#!/usr/bin/env bash
# xgrammar 0.2.8 compares `pattern` with a JSON string as it is written, unescaped. For {"type": "string", "pattern": "a\"b"} it
# accepts "a"b", which is no JSON, and refuses "a\"b", the JSON text of the value that the schema asks for. From a class with other
# characters, such as `.`, it leaves the quote out. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q xgrammar==0.2.8
venv/bin/python - <<'PY'
import json

import xgrammar

tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]
info = xgrammar.TokenizerInfo(tokens, vocab_size=257, stop_token_ids=[256])
compiler = xgrammar.GrammarCompiler(info, max_threads=1)


def accepts(pattern: str, text: str) -> bool:
    matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema({"type": "string", "pattern": pattern}))
    return matcher.accept_string(text) and matcher.is_completed()


asked = 'a"b'
seen = [accepts(asked, f'"{asked}"'), accepts(asked, json.dumps(asked)), accepts("a.b", f'"{asked}"')]
print("as no JSON:", seen[0], " as JSON:", seen[1], " by a wider class:", seen[2])
raise SystemExit(seen != [True, False, False])
PY
