"""Jump-forward decoding: text that the grammar forces is appended at once and computed as a prefill chunk.

After Zheng et al., SGLang (2024), section 4. Tokens are appended, never replaced, and each must be one that could have
been sampled: the grammar accepts it, it is not suppressed, and it does not end the output. A token that would end the
output is left to the model, but for the end of a sequence where the grammar allows nothing else.

Forced text gets the tokenizer's own ids, at the seam and whatever follows: the model was trained on these, and other
ids for the same text would mislead it.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import takewhile

from ...constrained.errors import GrammarError
from ..protocol.errors import RequestError
from .interfaces import VocabularyInfo
from .request import Request
from .rows.sampling_inputs import grammar_too_complex, request_mask

CONTEXT_TOKENS = 4  # maximum number of tokens before the seam that are encoded with the text

Retokenise = Callable[[Sequence[int], bytes], list[int]]  # (tokens before, forced bytes) -> ids


class Retokeniser:
    """Tokenises forced bytes. `encode` gives the ids of text that follows other text, with names of special tokens as
    text."""

    def __init__(self, token_bytes: Sequence[bytes | None], encode: Callable[[str], list[int]]) -> None:
        self._token_bytes = token_bytes
        self._encode = encode
        self._sorted = sorted({data for data in token_bytes if data})
        self._longest = max(map(len, self._sorted), default=0)

    def __call__(self, before: Sequence[int], data: bytes) -> list[int]:
        """Tokens for the beginning of `data`, which follows the tokens `before`; often not for all of it.

        Returns none if the tokenizer would join the last token before the seam with the first one after it. At the end,
        ids are left out that would differ if more text followed.
        """
        text = _complete_characters(data)
        if not text:
            return []
        ends = self._seam_ends(text)
        context = self._text_before(before)
        if not context:
            return self._settled_ids("", text, ends)
        while context:
            context_text = _decode_or_none(b"".join(map(self._bytes_of, context)))
            if context_text is not None:
                ids = self._settled_ids(context_text, text, ends)
                if ids[: len(context)] == context:
                    return ids[len(context) :]
            context = context[1:]
        return []

    def _settled_ids(self, context_text: str, text: str, ends: list[int]) -> list[int]:
        """Return the first ids of `context_text + text` that stay the same for every place in `ends` where a longer
        token may begin."""
        encodings = [self._encode(context_text + text[:end]) for end in ends]
        return [column[0] for column in takewhile(all_equal, zip(*encodings, strict=False))]

    def _seam_ends(self, text: str) -> list[int]:
        """Return the places in the text, in characters, where a token may begin that reaches beyond its end,
        and the end itself."""
        ends = [len(text)]
        num_bytes = 0
        rest = b""
        for place in reversed(range(len(text))):
            character = text[place].encode()
            # A token may begin within a character; the text before it ends at the character.
            if any(self._is_proper_token_prefix(character[at:] + rest) for at in range(len(character))):
                ends.append(place)
            rest = character + rest
            num_bytes += len(character)
            if num_bytes >= self._longest:
                break
        return ends

    def _text_before(self, before: Sequence[int]) -> list[int]:
        """Return the last tokens before the seam that are text, without a special token in between."""
        return list(takewhile(self._bytes_of, reversed(before[-CONTEXT_TOKENS:])))[::-1]

    def _is_proper_token_prefix(self, data: bytes) -> bool:
        # In sorted order, strings that start with `data` come right after it.
        at = bisect_left(self._sorted, data)
        at += at < len(self._sorted) and self._sorted[at] == data
        return at < len(self._sorted) and self._sorted[at].startswith(data)

    def _bytes_of(self, token: int) -> bytes:
        return self._token_bytes[token] or b""


def _complete_characters(data: bytes) -> str:
    """Decode the whole characters of `data`, which may end inside one."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)


def _decode_or_none(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def all_equal(ids: tuple[int, ...]) -> bool:
    """Return True if the ids are one."""
    return len(set(ids)) == 1


def jump_forward(request: Request, retokenise: Retokenise) -> int:
    """Append the forced tokens, as far as they are settled. Returns their number; the client gets them with the next
    sampled token. Raises RequestError when the grammar is too complex to follow."""
    if request.matcher is None or request.end - 1 <= len(request.tokens):
        return 0
    try:
        forced = request.matcher.forced()
    except GrammarError as error:
        raise grammar_too_complex(error) from None
    return append_forced(request, retokenise(request.tokens, forced)) if forced else 0


def append_forced(request: Request, ids: Sequence[int]) -> int:
    """Append forced tokens, up to the first that must not be. Returns and raises as `jump_forward`."""
    assert request.matcher is not None
    num_tokens = len(request.tokens)
    is_first = request.widened_end == num_tokens  # nothing has been sampled
    room = max(0, request.end - 1 - num_tokens)
    try:
        for token in ids[:room]:
            if not _may_be_appended(request, token):
                break
            # A grammar engine may be stricter about tokens than about bytes: leave it to the model.
            if not request.matcher.accept(token):
                break
            finish = request.stops.feed(token, request.num_output)
            assert finish is None
            request.tokens.append(token)
    except GrammarError as error:
        raise grammar_too_complex(error) from None
    if is_first:
        request.widened_end = len(request.tokens)
    return len(request.tokens) - num_tokens


def only_end(request: Request, vocabulary: VocabularyInfo) -> int | None:
    """Return the end of sequence if nothing else may follow the request's tokens, whose mask is ready: then no pass is
    needed to sample it. None where something else may, and where the request wants what a pass would tell."""
    end, matcher = vocabulary.forced_end, request.matcher
    if end is None or matcher is None or request.message.logprobs is not None or request.routes is not None:
        return None
    try:
        mask = request_mask(request, vocabulary.vocab_size) if matcher.is_accepting() else None
    except (GrammarError, RequestError):
        return None  # it fails when its row is built
    return end if request.stops.is_only_end(mask) else None


def follow_continued(request: Request, retokenise: Retokenise | None) -> bool:
    """Let the grammar follow the continued tokens of the prompt, as it did when they were sampled, or forced after one
    that was.

    Forced text is tokenised from the place where it begins, so that place has to be found again. Sets `forced_rest` to
    the forced ids that come after the last token. Returns True if there are any. Raises RequestError for a token that
    the grammar refuses, and when it is too complex to follow.
    """
    tokens, at, end = request.message.tokens, request.output_start, request.num_prompt
    try:
        forced = _forced_ids(request, at, retokenise)
        while at < end:
            num_forced = sum(1 for _ in takewhile(all_equal, zip(forced, tokens[at : at + len(forced)], strict=False)))
            sampled = at + num_forced  # the position after them
            for position in range(at, min(sampled + 1, end)):
                _accept_continued(request, position)
            at = sampled + 1
            forced = _forced_ids(request, at, retokenise) if at <= end else forced[num_forced:]
    except GrammarError as error:
        raise grammar_too_complex(error) from None
    request.continued_due, request.forced_rest = False, forced
    return bool(forced)


def _forced_ids(request: Request, at: int, retokenise: Retokenise | None) -> list[int]:
    """Return the ids of the text that is forced at a position of the prompt."""
    if retokenise is None:
        return []
    assert request.matcher is not None
    forced = request.matcher.forced()
    return retokenise(request.message.tokens[max(0, at - CONTEXT_TOKENS) : at], forced) if forced else []


def _accept_continued(request: Request, position: int) -> None:
    assert request.matcher is not None
    token = request.message.tokens[position]
    if not request.matcher.accept(token):
        raise RequestError(
            f"the constraint refuses token {token} at position {position} of the prompt, "
            "which continued_tokens counts to the output",
            param="continued_tokens",
        )


def _may_be_appended(request: Request, token: int) -> bool:
    stops, num_output = request.stops, request.num_output
    if request.rules is not None and not request.rules.allows(token, request.recent_output):
        return False
    return token not in stops.suppressed(num_output) and not stops.would_end(token, num_output)
