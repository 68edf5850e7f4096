"""What the rest of the runtime asks of a tokenizer, whatever library reads its files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .chat_template import ChatTemplate
from .token_bound import TokenCountBound


class Tokenizer(Protocol):
    """Text to token ids and back. Instances are immutable and may be used by several threads.

    The text of ids is the concatenation of their `token_bytes` read as UTF-8, each maximal invalid part as U+FFFD;
    nothing is stripped, so that the text of a sequence's parts is the parts of its text.
    """

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. A model may have more rows; such ids are nobody's."""

    @property
    def token_bytes(self) -> list[bytes | None]:
        """What each id adds to the text. None: special, or unused. Added tokens that are not special have bytes."""

    @property
    def special_ids(self) -> dict[str, int]:
        """Every special token by its name."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end an output, as the checkpoint's generation_config, config and tokenizer files name them."""

    @property
    def adds_bos(self) -> bool:
        """Whether the model expects `bos_id` before every sequence."""

    @property
    def chat(self) -> ChatTemplate | None: ...

    @property
    def bound(self) -> TokenCountBound:
        """How few tokens a text can have. Sound: it never says more than `encode` returns."""

    def encode(
        self, text: str, *, parse_special: bool = True, add_bos: bool = False, continues: bool = False
    ) -> list[int]:
        """The ids of `text`.

        `parse_special=False`: names of special tokens are ordinary text, as what a user wrote must be.
        `continues=True`: the text follows other tokens. SentencePiece vocabularies of the Llama-2 kind put a space
        before the first word of a sequence, and only there; with `continues` the text of the ids is exactly `text`.
        Raises RequestError when the text holds half a surrogate pair.
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`. With `skip_special_tokens=False` special tokens show their names; unused ids nothing."""
