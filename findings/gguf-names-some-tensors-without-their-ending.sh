#!/usr/bin/env bash
# gguf 0.19.0: `TensorNameMap.get_name` drops the ending ".weight" of tensors whose full name stands in its table, such as the second norm
# of Falcon-H1. `input_layernorm.weight` becomes "blk.0.attn_norm.weight", `pre_ff_layernorm.weight` "blk.0.ffn_norm". llama.cpp's
# converter names tensors by this table, so its files have norms of both kinds, and a reader has to look for both. PLaMo 2 has five such
# names. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q gguf==0.19.0
venv/bin/python - <<'PY'
import gguf

names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.FALCON_H1, 1)
norms = ("input_layernorm", "pre_ff_layernorm")
seen = [names.get_name(f"model.layers.0.{norm}.weight", (".weight", ".bias")) for norm in norms]
print(seen)
raise SystemExit(seen != ["blk.0.attn_norm.weight", "blk.0.ffn_norm"])
PY
