"""tiktoken ranks files (Llama 3's `tokenizer.model`): lines of a base64 token and its rank, read by `tiktoken`."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

import tiktoken

from .errors import TokenizerError
from .interface import Tokenizer
from .token_bound import TokenCountBound
from .tokenizer_config import TokenizerConfig

# From Llama 3's model card: the pre-tokeniser's pattern, and the special tokens that follow the ranks.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
NUM_SPECIAL = 256
BOS = "<|begin_of_text|>"
_ENDS = ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>")
_FIRST_SPECIAL = (
    BOS,
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
)


class TiktokenTokenizer(Tokenizer):
    """A tokenizer of `tiktoken`. Special tokens are those of the configuration files, or else Llama 3's."""

    def __init__(self, path: Path, config: TokenizerConfig) -> None:
        ranks = read_ranks(path)
        size = 1 + max(ranks.values())
        added = {number: entry for number, entry in config.added.items() if number >= size}
        if added:
            special_ids = {text: number for number, (text, special) in added.items() if special}
        else:
            special_ids = {text: size + n for n, text in enumerate(_llama3_special())}
        ordinary = {text: number for number, (text, special) in added.items() if not special}
        token_bytes: list[bytes | None] = [None] * (1 + max(*special_ids.values(), *ordinary.values(), size - 1))
        for data, rank in [*ranks.items(), *((text.encode(), number) for text, number in ordinary.items())]:
            token_bytes[rank] = data
        self._library = tiktoken.Encoding(
            path.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special_ids | ordinary
        )
        self._ordinary = frozenset(ordinary)
        pieces = [*ranks, *(text.encode() for text in (special_ids | ordinary))]
        super().__init__(
            token_bytes,
            special_ids,
            config,
            bound=TokenCountBound(max(map(len, pieces))),
            default_bos=BOS,
            default_eos=_ENDS,
            adds_bos=True,
        )

    def encode_text(self, text: str, *, parse_special: bool, continues: bool) -> list[int]:
        if parse_special:
            return self._library.encode(text, allowed_special="all")
        return self._library.encode(text, allowed_special=self._ordinary, disallowed_special=())


def looks_like_ranks(head: bytes) -> bool:
    """Return True when a file with this beginning holds ranks rather than a protobuf."""
    fields = head.split(b"\n", 1)[0].split()
    return len(fields) == 2 and fields[1].isdigit() and fields[0].isascii()


def read_ranks(path: Path) -> dict[bytes, int]:
    """Read the rank of each token. Raises TokenizerError naming the line that cannot be read."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{path}, line {number}: {line[:60]!r} is not a base64 token and a rank: {error}"
            ) from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise TokenizerError(f"{path} lacks {len(missing)} of the 256 single bytes, e.g. {missing[0]:#04x}")
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise TokenizerError(f"{path}: the ranks are not 0, 1, ..., {len(ranks) - 1}")
    return ranks


def _llama3_special() -> list[str]:
    reserved = [f"<|reserved_special_token_{n}|>" for n in range(2, 2 + NUM_SPECIAL - len(_FIRST_SPECIAL))]
    return [*_FIRST_SPECIAL, *reserved]
