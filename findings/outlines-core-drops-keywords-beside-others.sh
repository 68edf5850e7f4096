#!/usr/bin/env bash
# outlines-core 0.2.14 enforces `pattern` of a string and `required` of an object, but not beside some other keyword: with a `minLength` the pattern is dropped,
# and a required name that `properties` does not list may be missing, and cannot be written. No error tells of it. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q outlines-core==0.2.14
venv/bin/python - <<'PY'
import json
import re
from outlines_core.json_schema import build_regex_from_schema


def matches(schema, text):
    found = re.compile(build_regex_from_schema(json.dumps(schema))).fullmatch(text) is not None
    print(f"{json.dumps(schema)}: {text} matches {found}")
    return found


word = {"type": "string", "pattern": "^a*$"}
closed = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "z"]}
as_seen = [matches(word, '"bb"'), matches(word | {"minLength": 2}, '"bb"'), matches(closed, '{"a":1}'), matches(closed, '{"a":1,"z":2}')]
raise SystemExit(as_seen != [False, True, True, False])
PY
