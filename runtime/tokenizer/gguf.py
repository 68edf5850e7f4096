"""The tokenizer in a GGUF file's metadata: byte-level BPE ("gpt2") or SentencePiece's BPE ("llama").

The metadata are converted to the files that `tokenizers` and `sentencepiece` read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..models.gguf.file import GgufFile, open_gguf
from .chat_template import ChatTemplate
from .errors import TokenizerError
from .gguf_pre import PRE_TOKENIZERS, pre_tokenizer
from .hf import HFTokenizer
from .interface import Tokenizer
from .sentencepiece_model import SentencePieceTokenizer
from .tokenizer_config import TokenizerConfig

_NORMAL, _CONTROL, _USER_DEFINED, _BYTE = 1, 3, 4, 6  # ggml's types of tokens
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_NORMALISED = ("qwen2", "qwen35", "deepseek-r1-qwen")  # to NFC


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of the GGUF file `path`.

    Raises TokenizerError naming the key with an unsupported value, RamiformError when the file cannot be read.
    """
    file = open_gguf(path)
    tokens: list[str] = _required(file, "tokens")
    types: list[int] = file.value("tokenizer.ggml.token_type", default=[_NORMAL] * len(tokens))
    config = _tokenizer_config(file, tokens)
    match kind := _required(file, "model"):
        case "gpt2":
            return HFTokenizer(path, config, _to_tokenizer_json(file, tokens, types))
        case "llama":
            return SentencePieceTokenizer(path, config, _to_tokenizer_model(file, tokens, types))
    raise TokenizerError(f"{path}: tokenizer.ggml.model: supported: gpt2, llama; {kind!r} is not supported")


def _required(file: GgufFile, name: str) -> Any:
    value = file.value(f"tokenizer.ggml.{name}")
    if value is None:
        raise TokenizerError(f"{file.path}: tokenizer.ggml.{name} is missing: the file has no tokenizer")
    return value


def _tokenizer_config(file: GgufFile, tokens: Sequence[str]) -> TokenizerConfig:
    ids = {name: file.value(f"tokenizer.ggml.{key}_token_id") for name, key in _NAMED.items()}
    ends = [file.value(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    names = {name: tokens[number] for name, number in ids.items() if number is not None and number < len(tokens)}
    template = file.value("tokenizer.chat_template")
    return TokenizerConfig(
        names=names,
        added={},
        eos_ids=tuple(dict.fromkeys(number for number in ends if number is not None)),
        adds_bos=file.value("tokenizer.ggml.add_bos_token"),
        chat=None if template is None else ChatTemplate(template, names),
    )


def _to_tokenizer_json(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Convert the metadata to the content of a tokenizer.json."""
    pre = file.value("tokenizer.ggml.pre", default="absent")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise TokenizerError(f"{file.path}: tokenizer.ggml.pre: supported: {known}; {pre!r} is not supported")
    cut, whole_words = pre_tokenizer(pre)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": text, "special": kind == _CONTROL, **flags}
        for number, (text, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre in _NORMALISED else None,
        "pre_tokenizer": cut,
        "post_processor": None,
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "vocab": {text: n for n, text in enumerate(tokens)},
            "merges": _required(file, "merges"),  # "a b", which the library takes for ["a", "b"]
            "ignore_merges": whole_words,
        },
    }


def _to_tokenizer_model(file: GgufFile, tokens: Sequence[str], types: Sequence[int]) -> bytes:
    """Convert the metadata to the content of a tokenizer.model."""
    try:
        from sentencepiece import sentencepiece_model_pb2 as messages
    except ImportError:
        raise TokenizerError(
            f"{file.path}: its tokenizer is read with the extra 'gguf': pip install 'ramiform[gguf]'"
        ) from None
    scores: list[float] = _required(file, "scores")
    model = messages.ModelProto()
    for text, score, kind in zip(tokens, scores, types, strict=True):
        # ggml's and SentencePiece's type numbers agree. llama.cpp's converter writes blanks in what users defined.
        piece = text.replace(" ", "\u2581") if kind == _USER_DEFINED else text
        model.pieces.add(piece=piece, score=score, type=kind)
    trained, normal = model.trainer_spec, model.normalizer_spec
    trained.model_type = messages.TrainerSpec.BPE
    trained.byte_fallback = _BYTE in types
    for name, key in (("bos_id", "bos"), ("eos_id", "eos"), ("unk_id", "unknown"), ("pad_id", "padding")):
        number = file.value(f"tokenizer.ggml.{key}_token_id")
        setattr(trained, name, -1 if number is None else number)
    normal.name = "identity"
    normal.add_dummy_prefix = file.value("tokenizer.ggml.add_space_prefix", default=True)
    normal.remove_extra_whitespaces = file.value("tokenizer.ggml.remove_extra_whitespaces", default=False)
    normal.escape_whitespaces = True
    return bytes(model.SerializeToString())
