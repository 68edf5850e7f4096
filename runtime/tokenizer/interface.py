"""The tokenizer interface and its library-independent part: a vocabulary as a list of bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from ..protocol.errors import RequestError
from .chat_template import ChatTemplate
from .token_bound import TokenCountBound
from .tokenizer_config import TokenizerConfig

# Names of special tokens that end a turn or a text, by llama.cpp's rule.
_END_NAMES = frozenset(
    "</s> <|endoftext|> <|end_of_text|> <|im_end|> <|eot_id|> <|eom_id|> <|end|> <|return|> <|call|> <|flush|> "
    "<|calls|> <end_of_turn> <turn|> <end_of_utterance> <EOT> _<EOT> [EOT] [EOS] <｜end▁of▁sentence｜>".split()
)


def check_characters(text: str) -> None:
    """Raise RequestError when the text holds an unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"text holds an unpaired surrogate, {text[error.start]!r}, at character {error.start}", param="text"
        ) from None


class Tokenizer(ABC):
    """Text to token ids and back. Instances are immutable and thread-safe.

    The text of ids is the concatenation of their `token_bytes` read as UTF-8, each maximal invalid part as U+FFFD.
    Nothing is stripped: the text of a sequence's parts is the parts of its text.
    """

    vocab_size: int  # one more than the largest id; a model may have more rows, whose ids have no token
    # Bytes that each id adds to the text. None: special, or unused. Added tokens that are not special have bytes.
    token_bytes: list[bytes | None]
    special_ids: dict[str, int]  # by name
    bos_id: int | None
    eos_ids: tuple[int, ...]  # ids that end an output: of configuration files, by their names, and by the template
    usual_end: int | None  # of these, the one that ends an answer: as the template has it, else the first
    adds_bos: bool  # the model expects `bos_id` before every sequence
    chat: ChatTemplate | None
    strips_blank = False  # a sequence's text has no blank before its first word, which `token_bytes` have
    bound: TokenCountBound  # lower bound on the number of tokens of a text

    def __init__(
        self,
        token_bytes: list[bytes | None],
        special_ids: dict[str, int],
        config: TokenizerConfig,
        *,
        bound: TokenCountBound,
        default_bos: str | None = None,
        default_eos: Iterable[str] = (),
        adds_bos: bool = False,
    ) -> None:
        self.token_bytes = token_bytes
        self.bound = bound
        self.special_ids = special_ids
        self.vocab_size = len(token_bytes)
        self.bos_id = self._find(config.names.get("bos_token", default_bos))
        declared: list[int | None] = [*config.eos_ids, self._find(config.names.get("eos_token"))]
        if not any(token is not None for token in declared):
            declared = [self._find(name) for name in default_eos]
        ends = [token for token in declared if token is not None and token < self.vocab_size]
        self.chat = config.chat
        by_template = self._ends_by_template()
        self.eos_ids = tuple(dict.fromkeys([*ends, *self._ends_by_name(), *by_template]))
        self.usual_end = next(iter([*by_template, *self.eos_ids]), None)
        self.adds_bos = self.bos_id is not None and (adds_bos if config.adds_bos is None else config.adds_bos)
        self._names = {token: name.encode() for name, token in special_ids.items()}

    @abstractmethod
    def encode_text(self, text: str, *, parse_special: bool, continues: bool) -> list[int]:
        """Return the library's ids of non-empty, valid text, without BOS."""

    def encode(
        self, text: str, *, parse_special: bool = True, add_bos: bool = False, continues: bool = False
    ) -> list[int]:
        """Return the ids of `text`.

        `parse_special=False`: names of special tokens are ordinary text, as user input must be. `continues=True`: the
        text follows other tokens. SentencePiece vocabularies of the Llama-2 kind put a space before the first word of a
        sequence, and only there; with `continues` the text of the ids is exactly `text`. Raises RequestError when the
        text holds an unpaired surrogate.
        """
        check_characters(text)
        ids = self.encode_text(text, parse_special=parse_special, continues=continues) if text else []
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def encode_end(self, text: str, *, continues: bool) -> list[int]:
        """Return the last ids of a longer text, of which `text` is the end from a special token's name on.

        Tokenizers cut every text there. `continues`: the longer text itself follows other tokens.
        """
        return self.encode(text, continues=continues)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; `skip_special_tokens=False` shows special tokens. Unused ids add nothing."""
        names = {} if skip_special_tokens else self._names
        known = (token for token in ids if 0 <= token < self.vocab_size)
        return b"".join(names.get(token) or self.token_bytes[token] or b"" for token in known).decode(
            "utf-8", errors="replace"
        )

    def decode_sequence(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of a whole sequence, as the library does: without the blank that was put before its first
        word."""
        text = self.decode(ids, skip_special_tokens=skip_special_tokens)
        return text.removeprefix(" ") if self.strips_blank else text

    def begins_longer_token(self, data: bytes) -> bool:
        """Return whether some token is longer than these bytes and begins with them."""
        place = bisect_right(self._sorted_bytes, data)
        return place < len(self._sorted_bytes) and self._sorted_bytes[place].startswith(data)

    @cached_property
    def _sorted_bytes(self) -> list[bytes]:
        return sorted({data for data in self.token_bytes if data})

    def _ends_by_name(self) -> list[int]:
        """Return the special tokens whose names say that they end a turn or a text."""
        names = _END_NAMES
        if "<|return|>" in self.special_ids:
            names -= {"<|end|>"}  # which ends a message there, not a turn
        return sorted(token for name, token in self.special_ids.items() if name in names)

    def _ends_by_template(self) -> list[int]:
        """Return the special token that the chat template writes after what the assistant said, if there is one."""
        said = "zqb"
        if self.chat is None or "<|return|>" in self.special_ids:
            return []
        try:
            text = self.chat.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": said}])
        except RequestError:
            return []
        _, is_said, rest = text.rpartition(said)
        found = [name for name in self.special_ids if is_said and rest.lstrip().startswith(name)]
        return [self.special_ids[max(found, key=len)]] if found else []

    def _find(self, name: str | None) -> int | None:
        """Return the id of a token that a configuration file names, special or not."""
        if name is None or name in self.special_ids:
            return None if name is None else self.special_ids[name]
        data = name.encode()
        return next((token for token, other in enumerate(self.token_bytes) if other == data), None)
