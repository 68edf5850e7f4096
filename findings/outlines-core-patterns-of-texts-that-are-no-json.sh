#!/usr/bin/env bash
# outlines-core 0.2.14 makes patterns of JSON Schemas whose texts are no JSON: an alternation in a `pattern` takes one quotation mark each (`^a|b$` is written
# as `"a` or `b"`), a quotation mark in a property's name is not escaped, and the schemas of `allOf` are written one behind the other. Each builds without an
# error, and a model that is held to it cannot write a value that parses. Seen with Python 3.11.
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

number = {"type": "integer"}
cases = {  # a schema; a valid value; texts that its pattern matches
    "alternation": ({"type": "string", "pattern": "^a|b$"}, '"a"', ['"a', 'b"']),
    "name": ({"type": "object", "properties": {'c"d': number}, "required": ['c"d']}, r'{"c\"d":1}', ['{"c"d":1}']),
    "allOf": (
        {"allOf": [{"type": "object", "properties": {name: number}, "required": [name]} for name in "ab"]},
        '{"a":1,"b":2}',
        ['{"a":1}{"b":2}'],
    ),
}
as_seen = True
for name, (schema, valid, texts) in cases.items():
    json.loads(valid)
    pattern = re.compile(build_regex_from_schema(json.dumps(schema)))
    for text in texts:
        try:
            is_json = json.loads(text) is not None
        except ValueError:
            is_json = False
        print(f"{name}: {text} matches {pattern.fullmatch(text) is not None}, is JSON {is_json}")
        as_seen &= pattern.fullmatch(text) is not None and not is_json
    print(f"{name}: {valid}, which is valid, matches {pattern.fullmatch(valid) is not None}")
    as_seen &= pattern.fullmatch(valid) is None
raise SystemExit(not as_seen)
PY
