#!/usr/bin/env bash
# The package gguf 0.19.0 writes an array of arrays as the format has it, and reads it back as one flat array: `contents()` of [[1, 2], [3]] is
# [1, 2, 3]. Where an inner array ends is told by the count that stands before its items; the reader steps over that count, so neither `parts`
# nor `data` have it. Only `types` say that the array was nested. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q gguf==0.19.0
venv/bin/python - <<'PY'
import gguf

for written in ([[1, 2], [3]], [[1], [2, 3]]):
    writer = gguf.GGUFWriter("nested.gguf", "llama")
    writer.add_array("example.nested", written)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    field = gguf.GGUFReader("nested.gguf").get_field("example.nested")
    print("written", written, "read", field.contents(), "types", [kind.name for kind in field.types])
    if field.contents() != [1, 2, 3] or len(field.types) != 3:
        raise SystemExit(1)
PY
