#!/usr/bin/env bash
# tokenizers 0.23.1 keeps two texts of an added token with normalized=True. Where the normalizer prepends a mark, `id_to_token` and
# `decode` give the normalised form ("▁<tool>"), `get_added_tokens_decoder` and `get_vocab` the plain one ("<tool>"). A table of the
# tokens' bytes that is built from one of them differs from what the library decodes. Seen with Python 3.11.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # whose modules Python would import first
python3 -m venv venv
venv/bin/python -m pip install -q tokenizers==0.23.1
venv/bin/python - <<'PY'
from tokenizers import AddedToken, Tokenizer, models, normalizers

tokenizer = Tokenizer(models.BPE({"a": 0, "▁": 1}, []))
tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
tokenizer.add_tokens([AddedToken("<tool>", normalized=True)])
number = tokenizer.get_vocab()["<tool>"]
seen = [tokenizer.id_to_token(number), tokenizer.decode([number]), tokenizer.get_added_tokens_decoder()[number].content]
print(seen)
raise SystemExit(seen != ["▁<tool>", "▁<tool>", "<tool>"])
PY
