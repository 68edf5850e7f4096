"""Encoders equal transformers' own classes and tokenizers: alone, in batches of unequal lengths, texts and pairs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ramiform
from ramiform.runtime.models.encoders.model import EncoderInput, EncoderModel, load_encoder, read_encoder
from ramiform.runtime.models.encoders.table import ENCODERS
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.tokenizer import TokenizerError, load_tokenizer
from ramiform.runtime.tokenizer.encoder import EncoderTokenizer
from ramiform.tests.models.encoder_checkpoints import make_encoder

TEXTS: list[tuple[str, str | None]] = [
    ("What is a panda?", None),
    ("What is a panda?", "The panda is a bear of China."),
    ("a", "It is late, and the black and white bears of China sleep. Hello, how are you?"),
    ("Wêird ☃ words\tunknown", "pandas"),
]


def load(folder: Path) -> EncoderModel:
    return load_encoder(folder, read_encoder(folder), device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_outputs_and_tokens_are_transformers_s(tmp_path: Path, name: str) -> None:
    model = make_encoder(tmp_path, name, **({} if name.endswith("Model") else {"num_labels": 3}))
    judge, own = transformers.AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert isinstance(own, EncoderTokenizer)
    encoder = load(tmp_path)
    output = encoder.plan.output
    assert output == ("mean" if name.endswith("Model") else "head")
    inputs, expected = [], []
    for first, second in TEXTS:
        fields = judge(first, second, return_tensors="pt")
        encoded = own.encode_marked(first, second, parse_special=False)
        assert encoded.ids == fields.input_ids[0].tolist()
        if "token_type_ids" in fields:
            assert encoded.types == fields.token_type_ids[0].tolist()
        inputs.append(EncoderInput(encoded.ids, encoded.types, output))
        with torch.inference_mode():
            found = model(**fields)
        expected.append(found.logits[0] if output == "head" else found.last_hidden_state[0].mean(0))
    alone = [data for each in inputs for data in encoder.compute([each])]
    for got, same, want in zip(encoder.compute(inputs), alone, expected, strict=True):
        np.testing.assert_allclose(np.frombuffer(got, "<f4"), want, atol=2e-5)
        np.testing.assert_allclose(np.frombuffer(same, "<f4"), want, atol=2e-5)
    spread = float(torch.stack(expected).std(0).max())
    assert spread > 1e-3, "the texts' outputs are the same"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["BertForSequenceClassification", "XLMRobertaForSequenceClassification", "MPNetModel"])
def test_the_longest_text_is_computed_and_no_longer_one(tmp_path: Path, name: str) -> None:
    model = make_encoder(tmp_path, name)
    encoder = load(tmp_path)
    longest = encoder.plan.context_length
    assert longest == (64 if name.startswith("Bert") else 62)
    tokens = torch.full((1, longest), 7)
    [got] = encoder.compute([EncoderInput(tokens[0].tolist(), [], encoder.plan.output)])
    with torch.inference_mode():
        found = model(tokens)
        want = found.logits[0] if encoder.plan.output == "head" else found.last_hidden_state[0].mean(0)
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, longest + 1), 7))
    np.testing.assert_allclose(np.frombuffer(got, "<f4"), want, atol=2e-5)


def test_names_of_special_tokens_in_a_text_are_text(tmp_path: Path) -> None:
    make_encoder(tmp_path, "BertForSequenceClassification")
    own = load_tokenizer(tmp_path)
    assert isinstance(own, EncoderTokenizer)
    marks = {own.special_ids["[CLS]"], own.special_ids["[SEP]"]}
    plain = own.encode_marked("a [SEP] [CLS] b", "c [SEP]", parse_special=False)
    assert [token for token in plain.ids if token in marks] == [*map(own.special_ids.get, ("[CLS]", "[SEP]", "[SEP]"))]
    assert len([token for token in own.encode_marked("a [SEP] b", parse_special=True).ids if token in marks]) == 3


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_pooling_is_read_from_files_of_all_versions(tmp_path: Path, changes: dict[str, Any], mode: str) -> None:
    model = make_encoder(tmp_path, "BertModel")
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(changes), "utf-8")
    encoder = load(tmp_path)
    assert encoder.plan.output == mode
    [got, _] = encoder.compute([EncoderInput([2, 9, 8, 3], [], encoder.plan.output), EncoderInput([1] * 9, [], "mean")])
    states_TE = model(torch.tensor([[2, 9, 8, 3]])).last_hidden_state[0].detach()
    want = {"first": states_TE[0], "last": states_TE[-1], "mean": states_TE.mean(0)}[mode]
    np.testing.assert_allclose(np.frombuffer(got, "<f4"), want, atol=2e-5)


def _edit(**fields: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | fields), "utf-8")

    return edit


def _replace(name: str, content: Any) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        (folder / name).write_text(json.dumps(content), "utf-8")

    return replace


def _pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


REFUSED: list[tuple[str, Callable[[Path], None], str]] = [
    ("BertModel", lambda folder: shutil.rmtree(folder / "1_Pooling"), "no 1_Pooling/config.json"),
    ("BertModel", _replace("1_Pooling/config.json", {"pooling_mode": "max"}), "not by max"),
    ("BertModel", _replace("1_Pooling/config.json", {}), "one mode"),
    ("BertModel", _replace("modules.json", [{"type": "sentence_transformers.models.Dense"}]), "Dense"),
    ("BertModel", _replace("modules.json", [3]), "must list modules"),
    ("BertModel", _edit(model_type="gpt2"), "model_type"),
    ("BertModel", _edit(num_hidden_layers=10**6), "num_hidden_layers"),
    ("BertModel", _edit(quantization_config={"quant_method": "gptq"}), "quantization_config"),
    ("BertModel", _edit(num_attention_heads=3), "transformers does not make"),
    ("BertModel", _edit(vocab_size=10**8), "cannot hold"),
    ("BertModel", _edit(num_hidden_layers=3), "missing keys"),
    ("BertModel", _edit(intermediate_size=32), "transformers"),
    ("BertModel", _pickle_only, "model.safetensors"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change", "words"), REFUSED)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, name: str, change: Callable[[Path], None], words: str
) -> None:
    make_encoder(tmp_path, name)
    change(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        load(tmp_path)


def test_the_page_of_models_lists_the_table() -> None:
    page = (Path(ramiform.__file__).parent / "docs/models/models.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \|.*\| (?:labels, scores of pairs|embeddings) \|$", page, re.MULTILINE)
    assert listed == [*ENCODERS]


def test_commands_for_decoders_say_that_it_is_an_encoder(tmp_path: Path) -> None:
    make_encoder(tmp_path, "BertForSequenceClassification")
    with pytest.raises(CheckpointError, match="BertForSequenceClassification is an encoder"):
        read_config(tmp_path)


def test_a_tokenizer_that_marks_no_texts_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, "BertForSequenceClassification")
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"post_processor": None}), "utf-8")
    with pytest.raises(TokenizerError, match="post_processor"):
        load_tokenizer(tmp_path)
    file.unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
