"""DRY with its sequence breakers. Judge: llama.cpp's own losses, written by `tests/models/llama_cpp/write_dry.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from ramiform.runtime.frontend.text.breakers import breaker_sequences
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.scheduler.rows.repeats import repeats_of
from ramiform.runtime.tokenizer.gguf import load_gguf_tokenizer
from ramiform.runtime.tokenizer.interface import Tokenizer

DATA = Path(__file__).parents[2] / "models/llama_cpp/data"
JUDGED = json.loads((DATA / "dry.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    model = json.loads((DATA / "pre_tokenizers.json").read_text("utf-8"))
    path = tmp_path_factory.mktemp("gguf") / "vocabulary.gguf"
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(model["tokens"])
    writer.add_token_types([1] * len(model["tokens"]))
    writer.add_token_merges(model["merges"])
    writer.add_eos_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_gguf_tokenizer(path)


def test_tokens_lose_what_llama_cpp_subtracts(tokenizer: Tokenizer) -> None:
    assert sum(bool(row["losses"]) for row in JUDGED) > 60
    for row in JUDGED:
        fields = {name: value for name, value in row.items() if name.startswith("dry_")}
        if fields["dry_penalty_last_n"] < 0:
            del fields["dry_penalty_last_n"]
        params = SamplingParams(**fields | {"dry_sequence_breakers": tuple(fields["dry_sequence_breakers"])})
        breakers = breaker_sequences(tokenizer, params.dry_sequence_breakers)
        repeats = repeats_of(Generate(rid="r", tokens=row["tokens"], sampling=params, breakers=breakers))
        assert repeats is not None
        assert repeats.after(row["tokens"]) == pytest.approx(dict(row["losses"]), rel=1e-5), row
