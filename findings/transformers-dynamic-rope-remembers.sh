#!/usr/bin/env bash
# transformers 5.23.0: a model with rope_type "dynamic" remembers the longest sequence that it has seen. A prompt of 40 tokens beyond an
# original context of 32 gets other logits after one of 60 than before it, and keeps them, though nothing of the first is cached. A
# prompt within the original context resets it. So a judge of dynamic NTK has to be a model of its own for each prompt.
# Seen with torch 2.13.0 on a CPU, Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q transformers==5.23.0 torch==2.13.0
venv/bin/python - <<'PY'
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
    max_position_embeddings=32, initializer_range=0.3,
    rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
)  # fmt: skip
model = LlamaForCausalLM(config).eval()


def logits(length):
    with torch.inference_mode():
        return model(torch.arange(length)[None] % 100, use_cache=False).logits[0, -1]


before = logits(40)
logits(60)
after, again = logits(40), logits(40)
logits(20)
reset = logits(40)
seen = [bool((one - before).abs().max() > 1e-3) for one in (after, again, reset)]
print("other logits after 60 tokens, again, and after 20:", seen)
raise SystemExit(seen != [True, True, False])
PY
