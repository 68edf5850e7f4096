"""Encodes prompts: text of a chat template may name special tokens, text inside its messages may not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from ...protocol.core import ModelInfo
from ...protocol.errors import RequestError, context_exceeded
from ...tokenizer.encoder import EncodedTexts, EncoderTokenizer
from ...tokenizer.interface import Tokenizer
from .offload import CancellationToken, offload

LONG_TEXT = 1 << 16  # characters, or tokens; work on more of them would block the event loop for too long
USUAL_BYTES_PER_TOKEN = 8  # a text with more bytes than this for each token that fits is counted before it is encoded
MAX_TRUNCATED = 1 << 20  # tokens of a prompt that is to be truncated
T = TypeVar("T")

Side = Literal["left", "right"]


class TokenLimit(NamedTuple):
    """The most tokens that a text may have, and the parameter that an error names.

    `num_completion`: the completion tokens asked for, which an error mentions. `route`: the limit belongs to a route,
    not to the model.
    """

    most: int
    param: str
    num_completion: int = 0
    route: str | None = None

    def error(self, num_tokens: int, *, at_least: bool = False) -> RequestError:
        if self.route is None:
            return context_exceeded(self.most, num_tokens, self.num_completion, prompt=self.param, at_least=at_least)
        number = f"at least {num_tokens}" if at_least else str(num_tokens)
        message = f"the text has {number} tokens, the most that {self.route} takes is {self.most}"
        return RequestError(message, param=self.param, code="text_too_long")


class Truncation(NamedTuple):
    """Shortens a prompt to `num_tokens`: side "left" drops its first tokens, "right" its last."""

    num_tokens: int
    side: Side

    def cut(self, ids: list[int]) -> list[int]:
        return ids[-self.num_tokens :] if self.side == "left" else ids[: self.num_tokens]

    @property
    def bound(self) -> TokenLimit:
        """The limit of a text before it is truncated."""
        return TokenLimit(MAX_TRUNCATED, "truncate_prompt_tokens", route="truncate_prompt_tokens")


class PromptSegment(NamedTuple):
    """A part of a prompt. In a trusted part the name of a special token means that token."""

    text: str
    trusted: bool


class Encoder:
    """Encodes text by a tokenizer.

    `most_tokens` waits until the model is loaded and returns how many tokens a prompt may have; None: any number.
    """

    def __init__(self, tokenizer: Tokenizer, most_tokens: Callable[[], Awaitable[int]] | None = None) -> None:
        self._tokenizer = tokenizer
        self._most_tokens = most_tokens
        names = sorted(tokenizer.special_ids, key=len, reverse=True)
        # A lookahead, so that matches may overlap: each could reach into untrusted text.
        self._special = re.compile(f"(?=({'|'.join(map(re.escape, names))}))") if names else None

    def encode(
        self,
        segments: Iterable[PromptSegment],
        *,
        at_start: bool,
        with_bos: bool = True,
        after: bool | None = None,
        bound: TokenLimit | None = None,
        cancellation: CancellationToken | None = None,
    ) -> list[int]:
        """Return the ids of adjacent texts.

        `at_start`: nothing precedes them, so BOS comes first if the tokenizer adds one and the text does not begin with
        it, unless `with_bos` is false. `after`: they are the end of a prompt and begin with a special token's name; the
        ids are those of the whole prompt, in which untrusted text precedes them if `after` is true.

        If no untrusted text takes part in a special token's name, these are the ids of the joined text; otherwise each
        run of equal trust is tokenised by itself. Raises RequestError for a text with more tokens than `bound`, before
        it is tokenised or as soon as too many are counted.
        """
        runs = merge_segments(segments)
        if bound is not None:
            self.check_length([text for text, _ in runs], bound)
            self._check_count(runs, bound, cancellation or CancellationToken())
        if self._is_safe_to_join(runs):
            runs = [PromptSegment("".join(text for text, _ in runs), trusted=True)]
        ids: list[int] = []
        for text, trusted in runs:
            if after is None or ids:
                ids += self._tokenizer.encode(text, parse_special=trusted, continues=not at_start or bool(ids))
            else:
                ids += self._tokenizer.encode_end(text, continues=after)
        bos = self._tokenizer.bos_id
        if at_start and with_bos and self._tokenizer.adds_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        if bound is not None and len(ids) > bound.most:
            raise bound.error(len(ids))
        return ids

    def check_length(self, texts: Sequence[str], bound: TokenLimit) -> None:
        """Raise RequestError if adjacent texts are so long that they must have more tokens than `bound`."""
        if sum(map(len, texts)) <= bound.most:
            return
        if (least := self._tokenizer.bound.least_tokens(texts)) > bound.most:
            raise bound.error(least, at_least=True)

    async def encode_async(
        self,
        segments: Sequence[PromptSegment],
        *,
        at_start: bool,
        with_bos: bool = True,
        after: bool | None = None,
        param: str = "prompt",
        bound: TokenLimit | None = None,
    ) -> list[int]:
        """Return the ids of adjacent texts, without blocking the event loop.

        Raises RequestError for more tokens than `bound`, by default than a prompt may have; it then names `param`.
        """
        most = bound or await self.prompt_bound(param)
        return await _offload_if_long(
            sum(len(text) for text, _ in segments),
            lambda cancellation: self.encode(
                segments, at_start=at_start, with_bos=with_bos, after=after, bound=most, cancellation=cancellation
            ),
        )

    async def encode_prompt(
        self, prompt: str, *, with_bos: bool = True, param: str = "prompt", bound: TokenLimit | None = None
    ) -> list[int]:
        """Return the ids of a client's whole prompt, in which special tokens may be named.

        Raises RequestError as `encode_async` does.
        """
        if with_bos and isinstance(self._tokenizer, EncoderTokenizer):
            return (await self.encode_marked(prompt, trusted=True, param=param, bound=bound)).ids
        segments = [PromptSegment(prompt, trusted=True)]
        return await self.encode_async(segments, at_start=True, with_bos=with_bos, param=param, bound=bound)

    async def encode_marked(
        self, first: str, second: str | None = None, *, trusted: bool, param: str, bound: TokenLimit | None = None
    ) -> EncodedTexts:
        """Return a text or a pair of texts with the special tokens of an encoder.

        Raises RequestError as `encode_async` does.
        """
        tokenizer = self._tokenizer
        assert isinstance(tokenizer, EncoderTokenizer)
        most = bound or await self.prompt_bound(param)
        texts = [text for text in (first, second) if text is not None]

        def work(cancellation: CancellationToken) -> EncodedTexts:
            if most is not None:
                self._check_count([PromptSegment(text, trusted) for text in texts], most, cancellation)
            encoded = tokenizer.encode_marked(first, second, parse_special=trusted)
            if most is not None and len(encoded.ids) > most.most:
                raise most.error(len(encoded.ids))
            return encoded

        return await _offload_if_long(sum(map(len, texts)), work)

    async def prompt_bound(self, param: str, num_completion: int | None = None) -> TokenLimit | None:
        """Return the limit of a prompt's tokens; None: no limit."""
        if self._most_tokens is None:
            return None
        return TokenLimit(await self._most_tokens(), param, num_completion or 0)

    async def decode_async(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids that a client sent, without blocking the event loop."""
        return await _offload_if_long(
            len(ids), lambda _: self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        )

    def _check_count(self, runs: Sequence[PromptSegment], bound: TokenLimit, cancellation: CancellationToken) -> None:
        """Raise RequestError when an unusually long text has too many tokens, counted piece by piece.

        At the ends of a piece the tokens may differ from those of the whole text, so only half of them count.
        """
        if sum(len(text) for text, _ in runs) <= max(LONG_TEXT, bound.most * USUAL_BYTES_PER_TOKEN):
            return
        counted = 0
        for text, trusted in runs:
            for start in range(0, len(text), LONG_TEXT):
                cancellation.check()
                piece = text[start : start + LONG_TEXT]
                if self._tokenizer.bound.strips:  # a token may take the blanks beside it
                    piece = piece.strip()
                counted += len(self._tokenizer.encode(piece, parse_special=trusted, continues=True))
                if counted > 2 * bound.most:
                    raise bound.error(counted // 2, at_least=True)
        cancellation.check()

    def _is_safe_to_join(self, runs: Sequence[PromptSegment]) -> bool:
        if self._special is None or all(trusted for _, trusted in runs):
            return True
        text = "".join(text for text, _ in runs)
        matches = [match.span(1) for match in self._special.finditer(text)]
        start = 0
        for part, trusted in runs:
            end = start + len(part)
            if not trusted and any(first < end and last > start for first, last in matches):
                return False
            start = end
        return True


async def _offload_if_long(size: int, work: Callable[[CancellationToken], T]) -> T:
    """Run long work in a thread. Short work yields to the event loop first, so thousands of texts do not block it."""
    await asyncio.sleep(0)
    return work(CancellationToken()) if size <= LONG_TEXT else await offload(work)


def merge_segments(segments: Iterable[PromptSegment]) -> list[PromptSegment]:
    """Join neighbours of equal trust."""
    runs: list[tuple[list[str], bool]] = []
    for text, trusted in segments:
        if not text:
            continue
        if runs and runs[-1][1] == trusted:
            runs[-1][0].append(text)
        else:
            runs.append(([text], trusted))
    return [PromptSegment("".join(texts), trusted) for texts, trusted in runs]


def completion_token_limit(
    info: ModelInfo, num_prompt: int, asked: int | None, *, prompt: str, limit: str, default: int | None = None
) -> int:
    """Return the maximum number of tokens of an answer: `asked`, else `default`, else what fits.

    Raises RequestError when prompt and answer exceed the context. `prompt` and `limit` are the names of their fields.
    """
    most = info.max_request_tokens
    if num_prompt + (1 if asked is None else asked) > most:
        num_completion = asked or (1 if num_prompt == most else 0)
        raise context_exceeded(most, num_prompt, num_completion, prompt=prompt, limit=limit)
    if asked is not None:
        return asked
    return most - num_prompt if default is None else min(default, most - num_prompt)
