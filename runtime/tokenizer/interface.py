"""The interface of tokenizers, for all libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .chat_template import ChatTemplate
from .token_bound import TokenCountBound


class Tokenizer(Protocol):
    """Text to token ids and back. Instances are immutable and thread-safe.

    The text of ids is the concatenation of their `token_bytes` read as UTF-8, each maximal invalid part as U+FFFD.
    Nothing is stripped: the text of a sequence's parts is the parts of its text.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. A model may have more rows; such ids have no token."""

    @property
    def token_bytes(self) -> list[bytes | None]:
        """Bytes that each id adds to the text. None: special, or unused. Added tokens that are not special have
        bytes."""

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens by name."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end an output, from the checkpoint's generation_config, config and tokenizer files."""

    @property
    def adds_bos(self) -> bool:
        """True when the model expects `bos_id` before every sequence."""

    @property
    def chat(self) -> ChatTemplate | None: ...

    @property
    def bound(self) -> TokenCountBound:
        """Lower bound on the number of tokens of a text; it never exceeds the length of `encode`'s result."""

    def encode(
        self, text: str, *, parse_special: bool = True, add_bos: bool = False, continues: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        `parse_special=False`: names of special tokens are ordinary text, as user input must be. `continues=True`: the
        text follows other tokens. SentencePiece vocabularies of the Llama-2 kind put a space before the first word of a
        sequence, and only there; with `continues` the text of the ids is exactly `text`. Raises RequestError when the
        text holds an unpaired surrogate.
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`. `skip_special_tokens=False` shows special tokens by name; unused ids add
        nothing."""
