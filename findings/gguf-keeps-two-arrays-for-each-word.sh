#!/usr/bin/env bash
# The package gguf 0.19.0 keeps the words of a vocabulary as two NumPy arrays each, the length and the bytes, and each number of an array as
# one. Opening a file with 151,936 words and as many merges makes some 760,000 arrays, seven to nine seconds of a slow processor, before
# any tensor is asked for, in each process that opens it; a walk over the lengths takes a third of a second. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q gguf==0.19.0
venv/bin/python - <<'PY'
import gguf

NUMBER = 5000
writer = gguf.GGUFWriter("words.gguf", "llama")
writer.add_array("tokenizer.ggml.tokens", [f"word {index}" for index in range(NUMBER)])
writer.add_array("tokenizer.ggml.token_type", [1] * NUMBER)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
fields = gguf.GGUFReader("words.gguf").fields
words, types = (len(fields[f"tokenizer.ggml.{name}"].parts) for name in ("tokens", "token_type"))
print(f"arrays for {NUMBER} words: {words}; for as many numbers: {types}")
raise SystemExit(not (words >= 2 * NUMBER and types >= NUMBER))
PY
