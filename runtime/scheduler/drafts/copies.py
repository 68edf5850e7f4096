"""Drafts of constrained text by its characters: words copied from the prompt, the ends of values, the joints of JSON.

In a value of JSON the words of the prompt are other tokens: the first one has no space before it, and a quote or a
comma ends it. So tokens that matched before (`suffix`, `ngram`) find them late; the text itself finds them at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal

from .tree import DraftTree, MergedTree

MAX_PROMPT_BYTES = 1 << 14  # of the prompt's end that are searched
TAIL_TOKENS = 48  # of the output, in which the value that is being written begins
_COPIED_BYTES = 40  # at most
_MAX_PLACES = 3  # of the prompt that are copied from, the last ones
_MAX_LOOKED_AT = 8  # occurrences, of which some are within words
_MATCHED_BYTES = 40  # of the value
_MAX_NAMES = 64  # of the prompt, the last ones
_WORD_BEGINS = re.compile(rb"(?<![^\W_])[^\W_]")
_NAMES = re.compile(rb"(?<![^\W_])(?:[A-Z][\w'-]*(?: [A-Z][\w'-]*)*|\d+(?:\.\d+)?)(?![^\W_])")
_MARKS = re.compile(rb'["\n<>|\\{}\[\]]')
_LAST_WORDS = re.compile(rb"[\w.+-]*\Z")

Place = Literal["string", "value", "colon", "comma"]
# What may come between two values: at the end of a string or of another value, after a colon, after a comma; with the
# chance that it does where a grammar allows it.
_JOINTS: dict[Place, dict[bytes, float]] = {
    "string": {b'":': 0.9, b'",': 0.6, b'"}': 0.6, b'"]': 0.4, b'"': 0.3, b'":"': 0.3},
    "value": {b",": 0.7, b"}": 0.6, b"]": 0.5, b"},": 0.3},
    "colon": {b' "': 0.8, b' ["': 0.7, b' {"': 0.7, b" ": 0.4, b" true": 0.5, b" false": 0.3, b'"': 0.2},
    "comma": {b' "': 0.8, b'"': 0.2, b" ": 0.2},
}
_SEEN, _UNSEEN = 0.9, 0.4  # factors of chances where the output had a joint of its kind before: that one, another one
# Chances that a copy goes on within a word, and after one; that a value ends there, and where nothing is copied; that a
# name of the prompt begins a value; of a text that is still drafted. Rough, from answers of SmolLM2-135M and
# Qwen2.5-Coder-0.5B: what was accepted of a request's drafts corrects them.
_IN_WORD, _NEXT_WORD, _END, _END_ALONE, _BEGIN, _MIN_CHANCE = 0.9, 0.5, 0.5, 0.3, 0.25, 0.01

Encode = Callable[[Sequence[int], bytes], list[int]]  # (tokens before, text) -> ids


class JointTokens:
    """The tokens of a vocabulary that stand between values of JSON."""

    def __init__(self, token_bytes: Sequence[bytes | None]) -> None:
        self.token_bytes = token_bytes
        wanted = {text for chances in _JOINTS.values() for text in chances}
        ids = {data: token for token, data in enumerate(token_bytes) if data in wanted}
        self.tokens = frozenset(ids.values())
        self._chances = {
            place: {ids[text]: chance for text, chance in chances.items() if text in ids}
            for place, chances in _JOINTS.items()
        }

    def chances(self, place: Place, seen: Collection[tuple[Place, int]]) -> Iterator[tuple[int, float]]:
        """Yield tokens with the chances that they come at such a place; `seen` are places with what came there."""
        chances = self._chances[place]
        known = {token for token in chances if (place, token) in seen}
        for token, chance in chances.items():
            yield token, chance if not known else max(_SEEN, chance) if token in known else _UNSEEN * chance


class PromptCopies:
    """Drafts for one request, from the text of its prompt."""

    def __init__(self, prompt: Sequence[int], joints: JointTokens) -> None:
        self._token_bytes, self._joints = joints.token_bytes, joints
        self._prompt = self._text(prompt[-MAX_PROMPT_BYTES:])[-MAX_PROMPT_BYTES:]
        names = [(place.start(), place.group()[:_COPIED_BYTES]) for place in _NAMES.finditer(self._prompt)]
        self._names = names[-_MAX_NAMES:]
        self._seen: set[tuple[Place, int]] = set()
        self._ids: dict[tuple[tuple[int, ...], bytes], list[int]] = {}  # of texts after a token
        self._copied = 0  # end of the place that was copied last

    def propose(self, output: Sequence[int], path: Sequence[int], encode: Encode) -> DraftTree | None:
        """Draft what follows `output`, the last tokens of a constrained output, and `path`; None without an idea.
        `encode` gives the ids of text."""
        if not path:
            self._seen = self._joints_of(output)
        output = [*output, *path]
        text = self._text(output)
        place, value = _place(text)
        tree = MergedTree()
        ends = list(self._joints.chances(place, self._seen))
        if place in ("string", "value") and value:
            for copy, chance in self._copies(value):
                self._grow(tree, output, copy, chance, ends, encode)
            if not len(tree):
                _add(tree, -1, ends, _SEEN if value in (b"true", b"false", b"null") else _END_ALONE)
        else:
            for copy, chance in self._beginnings(text):
                self._grow(tree, output, copy, chance, (), encode)
            if place != "string":
                _add(tree, -1, ends, 1.0)
        return tree.tree() if len(tree) else None

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self._token_bytes[token] or b"\n" for token in tokens)

    def _joints_of(self, output: Sequence[int]) -> set[tuple[Place, int]]:
        """Return where joints stand in an output, with their tokens."""
        found, text = set(), b""
        for token in output:
            if token in self._joints.tokens:
                found.add((_place(text)[0], token))
            text += self._token_bytes[token] or b"\n"
        return found

    def _copies(self, value: bytes) -> Iterator[tuple[bytes, float]]:
        """Yield what follows the longest end of a value, from the beginning of a word on, in the prompt."""
        for word in _WORD_BEGINS.finditer(value, max(0, len(value) - _MATCHED_BYTES)):
            if places := self._places(value[word.start() :]):
                self._copied = places[0]
                for rank, end in enumerate(places):
                    yield _MARKS.split(self._prompt[end : end + _COPIED_BYTES], maxsplit=1)[0], 0.5**rank
                return

    def _places(self, part: bytes) -> list[int]:
        """Return the ends of the last places where the prompt has `part`, at the beginning of a word."""
        places: list[int] = []
        at = len(self._prompt)
        for _ in range(_MAX_LOOKED_AT):
            if (at := self._prompt.rfind(part, 0, at + len(part) - 1)) < 0 or len(places) == _MAX_PLACES:
                break
            if not self._prompt[max(0, at - 1) : at].isalnum():
                places.append(at + len(part))
        return places

    def _beginnings(self, text: bytes) -> Iterator[tuple[bytes, float]]:
        """Yield names and numbers with which a value may begin: first those after the one that was copied last."""
        found = [(start < self._copied, start, name) for start, name in self._names if name not in text]
        for rank, (_, _, name) in enumerate(sorted(found)[:_MAX_PLACES]):
            yield name, _BEGIN * 0.6**rank

    def _grow(
        self,
        tree: MergedTree,
        output: Sequence[int],
        copy: bytes,
        chance: float,
        ends: Sequence[tuple[int, float]],
        encode: Encode,
    ) -> None:
        """Add the tokens of the text `copy`, which may end after each of its words."""
        parent, length = -1, 0
        before = tuple(output[-1:])
        if (ids := self._ids.get((before, copy))) is None:
            ids = self._ids[before, copy] = encode(before, copy) if copy else []
        for token in (*ids, None):
            if copy[length : length + 1].isalnum():
                chance *= _IN_WORD
            else:
                _add(tree, parent, ends, chance * _END)
                chance *= _NEXT_WORD
            if chance < _MIN_CHANCE:
                break
            if token is not None:
                parent = tree.add(parent, token, math.log(chance))
                length += len(self._token_bytes[token] or b"")


def _place(text: bytes) -> tuple[Place, bytes]:
    """Return where in JSON a text ends, and what it has there of a string or of another value."""
    quote = text.rfind(b'"')
    if quote >= 0 and text[:quote].rstrip()[-1:] in b"{[,:":
        return "string", text[quote + 1 :]
    match text.rstrip()[-1:]:
        case b":":
            return "colon", b""
        case b",":
            return "comma", b""
    found = _LAST_WORDS.search(text, max(0, len(text) - _MATCHED_BYTES))
    return "value", b"" if found is None else found.group()


def _add(tree: MergedTree, parent: int, ends: Sequence[tuple[int, float]], chance: float) -> None:
    for token, share in ends:
        tree.add(parent, token, math.log(chance * share))
