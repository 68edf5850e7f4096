"""Log-probabilities in OpenAI's two shapes: columns for completions, a list of tokens for chat."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from ...protocol.sampling import TokenLogprob
from ...tokenizer.interface import Tokenizer

MIN_LOGPROB = -9999.0  # replaces -inf, which JSON cannot express


class TokenTexts:
    """Bytes and text of single tokens. With `as_ids` the text of token 5 is "token_id:5"."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        self._as_ids = as_ids
        self._bytes = tokenizer.token_bytes
        self._names = {token: name for name, token in tokenizer.special_ids.items()}

    def is_special(self, token: int) -> bool:
        return token in self._names

    def data(self, token: int) -> bytes:
        if token in self._names:
            return self._names[token].encode()
        return (self._bytes[token] if token < len(self._bytes) else None) or b""

    def text(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        return self.data(token).decode("utf-8", "replace")

    def key(self, token: int) -> str:
        """Return a unique text of the token: one that is not valid UTF-8 is written as escaped bytes."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self.data(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class CompletionLogprobs:
    """Columns of one growing output. `asked`: further tokens to list at every position. `detailed`: a column of
    `token_entry` values too, None for the prompt's tokens."""

    def __init__(self, texts: TokenTexts, num_top: int, asked: Sequence[int] = (), *, detailed: bool = False) -> None:
        self._texts = texts
        self._num_top = num_top
        self._asked = asked
        self._detailed = detailed
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def columns(self, ids: Sequence[int], values: Sequence[TokenLogprob | None]) -> dict[str, list[Any]]:
        """Return the columns of further tokens. Special tokens have no width in the text."""
        offsets = []
        for token in ids:
            offsets.append(self._offset)
            if not self._texts.is_special(token):
                self._offset += len(self._decoder.decode(self._texts.data(token)))
        columns: dict[str, list[Any]] = {
            "tokens": [self._texts.key(token) for token in ids],
            "token_logprobs": [None if value is None else max(value.logprob, MIN_LOGPROB) for value in values],
            "top_logprobs": [None if value is None else self._top(value) for value in values],
            "text_offset": offsets,
        }
        if self._detailed:
            columns["details"] = [None if value is None else self._details(value) for value in values]
        return columns

    def _details(self, value: TokenLogprob) -> dict[str, Any] | None:
        return None if value.details is None else token_entry(self._texts, value, self._num_top, self._asked)

    def _top(self, value: TokenLogprob) -> dict[str, float]:
        """Return the likeliest tokens, those asked for, and the token itself."""
        top = {self._texts.key(token): max(logprob, MIN_LOGPROB) for logprob, token in value.top[: self._num_top]}
        top |= {
            self._texts.key(token): max(logprob, MIN_LOGPROB)
            for token, logprob in zip(self._asked, value.of, strict=False)
        }
        return top | {self._texts.key(value.id): max(value.logprob, MIN_LOGPROB)}


def chat_logprobs(
    texts: TokenTexts, values: Sequence[TokenLogprob], num_top: int | None = None, asked: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the log-probabilities of a chat's tokens: each with `num_top` alternatives (None: all), then the tokens
    `asked`.
    """
    return {"content": [token_entry(texts, value, num_top, asked) for value in values], "refusal": None}


def token_entry(
    texts: TokenTexts, value: TokenLogprob, num_top: int | None = None, asked: Sequence[int] = ()
) -> dict[str, Any]:
    """Return one token's entry of `chat_logprobs`, with its details if it has them."""

    def entry(logprob: float, token: int) -> dict[str, Any]:
        data = texts.data(token)
        return {"token": texts.text(token), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(data)}

    top = value.top[:num_top]
    listed = {token for _, token in top}
    others = [(index, token) for index, token in enumerate(asked) if token not in listed]
    own = entry(value.logprob, value.id)
    alternatives = [entry(*pair) for pair in top] + [entry(value.of[index], token) for index, token in others]
    if (details := value.details) is not None:
        own |= {
            "id": value.id,
            "masked_logprob": max(details.masked_logprob, MIN_LOGPROB),
            "drawn_logprob": max(details.drawn_logprob, MIN_LOGPROB),
            "allowed_mass": details.allowed_mass,
            "num_allowed": details.num_allowed,
            "entropy": details.entropy,
            "origin": details.origin,
        }
        ids = [token for _, token in (*top, *others)]
        masked = details.top[: len(top)] + [details.of[index] for index, _ in others]
        for alternative, token, logprob in zip(alternatives, ids, masked, strict=True):
            alternative |= {"id": token, "allowed": logprob is not None, "masked_logprob": logprob}
    return {**own, "top_logprobs": alternatives}


def prompt_logprobs(
    texts: TokenTexts, values: Sequence[TokenLogprob | None] | None, num_top: int
) -> list[dict[str, dict[str, Any]] | None]:
    """Return vLLM's form: for each prompt token a map of token ids; None for the first, which has no log-probability.

    The rank of a token that is not among the listed alternatives is None.
    """

    def entry(logprob: float, token: int, rank: int | None) -> dict[str, Any]:
        return {"logprob": max(logprob, MIN_LOGPROB), "rank": rank, "decoded_token": texts.text(token)}

    def position(value: TokenLogprob) -> dict[str, dict[str, Any]]:
        ranks = {token: rank for rank, (_, token) in enumerate(value.top, 1)}
        own = {str(value.id): entry(value.logprob, value.id, ranks.get(value.id))}
        return own | {
            str(token): entry(logprob, token, rank) for rank, (logprob, token) in enumerate(value.top[:num_top], 1)
        }

    return [None if value is None else position(value) for value in values or ()]
