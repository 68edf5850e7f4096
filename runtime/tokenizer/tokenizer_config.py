"""A checkpoint's tokenizer configuration from its JSON files: special tokens, end tokens, chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .chat_template import ChatTemplate, load_chat_template
from .errors import TokenizerError

MAX_ID_DIGITS = 9  # of a token id
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerConfig:
    """Configuration of a tokenizer. All fields may be empty: a directory may hold nothing but a vocabulary."""

    names: dict[str, str]  # "bos_token" and the like -> the token's text
    added: dict[int, tuple[str, bool]]  # id -> the text of a token added to the vocabulary, and whether it is special
    eos_ids: tuple[int, ...]  # of generation_config.json, else of config.json
    adds_bos: bool | None
    chat: ChatTemplate | None


def read_tokenizer_config(folder: Path) -> TokenizerConfig:
    """Read the configuration files. Raises TokenizerError naming the file that cannot be read."""
    config = read_json(folder / "tokenizer_config.json")
    names = {
        name: text
        for source in (read_json(folder / "special_tokens_map.json"), config)
        for name in SPECIAL_NAMES
        if (text := _token_text(source.get(name))) is not None
    }
    generation, model = read_json(folder / "generation_config.json"), read_json(folder / "config.json")
    adds_bos = config.get("add_bos_token")
    return TokenizerConfig(
        names=names,
        added=_added_tokens(folder, config, names),
        eos_ids=_ids(generation.get("eos_token_id")) or _ids(model.get("eos_token_id")),
        adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        chat=load_chat_template(folder, config.get("chat_template"), names),
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in `path`; {} when there is no such file."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds {type(value).__name__}, not an object")
    return value


def _added_tokens(folder: Path, config: dict[str, Any], names: dict[str, str]) -> dict[int, tuple[str, bool]]:
    special = set(names.values())
    added = {
        token: (text, text in special)
        for text, token in read_json(folder / "added_tokens.json").items()
        if isinstance(token, int)
    }
    decoder = config.get("added_tokens_decoder")
    if decoder is None:
        decoder = {}
    if not isinstance(decoder, dict):
        raise TokenizerError(f"{folder / 'tokenizer_config.json'}: added_tokens_decoder is no object")
    for key, entry in decoder.items():
        text = _token_text(entry)
        if text is not None and key.isdecimal() and len(key) <= MAX_ID_DIGITS:
            is_special = isinstance(entry, dict) and bool(entry.get("special", False))
            added[int(key)] = (text, is_special or text in special)
    return added


def _token_text(value: Any) -> str | None:
    """Return the token's text, from a string or an object that holds it. Raises TokenizerError for a lone surrogate."""
    if isinstance(value, dict):
        value = value.get("content")
    if not isinstance(value, str):
        return None
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise TokenizerError(f"the text of a token in the tokenizer's configuration is not valid Unicode: {value!r}")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    values: Iterable[Any] = value if isinstance(value, list) else [value]
    return tuple(token for token in values if isinstance(token, int) and not isinstance(token, bool))
