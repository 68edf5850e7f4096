#!/usr/bin/env bash
# The package gguf 0.19.0 takes an empty array and does not write it: `add_array(name, [])` returns as with any other, and the file has no field
# of that name, so "none" and "never stated" are the same to who reads it. The format itself has empty arrays: a type and the count 0, and the
# same package reads them. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q gguf==0.19.0
venv/bin/python - <<'PY'
import struct

import gguf

writer = gguf.GGUFWriter("empty.gguf", "llama")
writer.add_array("example.none", [])
writer.add_array("example.one", [1])
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
names = [name for name in gguf.GGUFReader("empty.gguf").fields if name.startswith("example.")]
print("fields that the writer wrote:", names)

name = b"example.none"
field = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, 5, 0)  # an array of int32 with no items
with open("by_hand.gguf", "wb") as file:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
by_hand = gguf.GGUFReader("by_hand.gguf").get_field("example.none")
print("an empty array of another writer is read as", by_hand.contents())
raise SystemExit(names != ["example.one"] or by_hand.contents() != [])
PY
