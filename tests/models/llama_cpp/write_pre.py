"""Writes what llama.cpp's pre-tokenisers do to some texts: `python -P write_pre.py LIBRARY`, as `write.py` has it.

A BPE is trained on what each of them cuts, so that ids show where text was cut.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ramiform.runtime.tokenizer.gguf_pre import PRE_TOKENIZERS, pre_tokenizer

sys.path.insert(0, str(Path(__file__).parent))
from judge import LlamaCpp

OUT = Path(__file__).parent / "data" / "pre_tokenizers.json"
TEXTS = [
    "The quick brown Fox jumps over 12345678 lazy dogs. It's o'clock, isn't it? WE'LL SEE, they'Re here",
    "def f(x):\n    return x ** 2  # \tsquared\r\n\r\n\n   end  ",
    "Größe, naïve café, 東京都の天気, Привет мир, ελληνικά — “quotes” … 100€ 3.14159",
    "HTTPServer camelCase snake_case $var <tag attr='v'> a+b=c; path/to//file\n/next [x](y) ~100%^2 `code`",
    "\n\n\t tabs\tand  double  spaces   \n ends here \n",
    "数字123と記号！？「引用」、한국어 텍스트 456, العربية 789",
]


def main(library: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, max_token_length=20, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(pieces(), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(pair) for pair in model["merges"]]
    judge, found = LlamaCpp(Path(library)), {}
    with tempfile.TemporaryDirectory() as folder:
        for pre in PRE_TOKENIZERS:
            path = Path(folder) / f"{pre}.gguf"
            write_model(path, pre, tokens, merges)
            found[pre] = judge.tokenize(path, TEXTS)
    names: dict[str, list[str]] = {}
    for pre, ids in found.items():
        names.setdefault(json.dumps(ids), []).append(pre)
    same = [{"names": own, "ids": json.loads(ids)} for ids, own in names.items()]
    OUT.write_text(json.dumps({"texts": TEXTS, "tokens": tokens, "merges": merges, "expected": same}) + "\n")


def pieces() -> list[str]:
    """Return the texts as each pre-tokeniser cuts them, so that each piece is a token."""
    found = set()
    for pre in PRE_TOKENIZERS:
        splits = pre_tokenizer(pre)[0]["pretokenizers"][:-1]
        rules = [pre_tokenizers.Split(Regex(split["pattern"]["Regex"]), "isolated") for split in splits]
        cut = pre_tokenizers.Sequence(rules)
        found |= {piece for text in TEXTS for piece, _ in cut.pre_tokenize_str(text)}
    return sorted(found)


def write_model(path: Path, pre: str, tokens: list[str], merges: list[str], types: list[int] | None = None) -> None:
    """Write a model of one layer with this vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types or [1] * len(tokens))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(tokens) - 1)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    for name in square:
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros((32, 32), np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
