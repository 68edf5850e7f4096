"""Log-probabilities in OpenAI's two shapes: columns for completions, a list of tokens for chat."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from ....protocol.sampling import TokenLogprob
from ....tokenizer.interface import Tokenizer

MIN_LOGPROB = -9999.0  # replaces -inf, which JSON cannot express


class TokenTexts:
    """Bytes and text of single tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._bytes = tokenizer.token_bytes
        self._names = {token: name for name, token in tokenizer.special_ids.items()}

    def is_special(self, token: int) -> bool:
        return token in self._names

    def data(self, token: int) -> bytes:
        if token in self._names:
            return self._names[token].encode()
        return (self._bytes[token] if token < len(self._bytes) else None) or b""

    def text(self, token: int) -> str:
        return self.data(token).decode("utf-8", "replace")

    def key(self, token: int) -> str:
        """Return a unique text of the token: one that is not valid UTF-8 is written as escaped bytes."""
        data = self.data(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionLogprobs:
    """Columns of one growing output. `offset`: characters before its first token."""

    def __init__(self, texts: TokenTexts, num_top: int, offset: int = 0) -> None:
        self._texts = texts
        self._num_top = num_top
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def columns(self, ids: Sequence[int], values: Sequence[TokenLogprob | None]) -> dict[str, list[Any]]:
        """Return the columns of further tokens. Special tokens have no width in the text."""
        offsets = []
        for token in ids:
            offsets.append(self._offset)
            if not self._texts.is_special(token):
                self._offset += len(self._decoder.decode(self._texts.data(token)))
        return {
            "tokens": [self._texts.key(token) for token in ids],
            "token_logprobs": [None if value is None else max(value.logprob, MIN_LOGPROB) for value in values],
            "top_logprobs": [None if value is None else self._top(value) for value in values],
            "text_offset": offsets,
        }

    def _top(self, value: TokenLogprob) -> dict[str, float]:
        """Return the likeliest tokens, and the token itself if it is not among them."""
        top = {self._texts.key(token): max(logprob, MIN_LOGPROB) for logprob, token in value.top[: self._num_top]}
        return top | {self._texts.key(value.id): max(value.logprob, MIN_LOGPROB)}


def chat_logprobs(texts: TokenTexts, values: Sequence[TokenLogprob]) -> dict[str, Any]:
    def entry(logprob: float, token: int) -> dict[str, Any]:
        data = texts.data(token)
        return {"token": texts.text(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(data)}

    content = [
        {**entry(value.logprob, value.id), "top_logprobs": [entry(*alternative) for alternative in value.top]}
        for value in values
    ]
    return {"content": content, "refusal": None}
