"""Remembers the token ids of conversations, so that a later turn repeats them.

A chat request brings its history as text. The tokenizer's ids of the generated part may differ from those that the
model generated; then the prefix cache has nothing for it. So the ids of prompts and answers are kept by their text, and
a rendered prompt takes the ids of the longest text that it continues. Only the rest is tokenised.

The text decides: ids are used where their own text is, character for character, what the template has rendered, and
where no name of a special token would be cut. Remembered ids end within or after generated text, or before a special
token, where tokenizers cut every text. So a prompt of which nothing was generated has the tokenizer's own ids. Each API
key has a memory of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, takewhile
from math import inf

import numpy as np
from numpy.typing import NDArray

from ....radix.packed_tokens import pack, unpack
from ...protocol.saved_state import SavedAnchor
from ...tokenizer.interface import Tokenizer
from ..core.journal import Journal
from ..core.tenant import current_tenant
from ..text.encoding import Encoder, PromptSegment, TokenLimit
from .history_tree import HistoryAnchor, HistoryNode, HistoryTree
from .renderer import CONTENT_MARKS, SPLIT

MAX_HISTORY_BYTES = 64 << 20  # of one frontend
MIN_PIECE = 64  # tokens of a prompt after which the next special token divides it
MAX_PIECES = 256  # of a prompt: each is looked up from the beginning of the text
MAX_CUTS = 256  # places that are tried for the end of a common part


@dataclass(frozen=True)
class EncodedPrompt:
    """A rendered prompt with its ids, to which an answer will be added. `anchor` is the end of what was known."""

    owner: str  # digest of its API key
    namespace: str
    text: str
    tokens: list[int]
    anchor: HistoryAnchor | None = None
    num_known: int = 0  # ids up to the anchor
    num_remembered: int = 0  # generated ids among those


class ExactHistory:
    """Ids of the conversations of one frontend, at most `max_bytes`. The API key that holds most loses first."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encoder: Encoder,
        max_bytes: int = MAX_HISTORY_BYTES,
        journal: Journal | None = None,
    ) -> None:
        """With a `journal`, go on with what that has from before a restart."""
        self._tokens = TokenTextIndex(tokenizer)
        self._encoder = encoder
        self._max_bytes = max_bytes
        self._trees: dict[str, HistoryTree] = {}  # by owner
        self._journal = journal
        self._numbers = count(1)  # of anchors in the journal
        if journal is not None:
            self._restore(journal)

    @property
    def num_bytes(self) -> int:
        return sum(tree.num_bytes for tree in self._trees.values())

    async def encode(
        self, segments: Sequence[PromptSegment], namespace: str, *, bound: TokenLimit | None
    ) -> EncodedPrompt:
        """Encode a rendered prompt, with the ids of what is remembered of it.

        Raises RequestError for more tokens than `bound`.
        """
        text = "".join(part if trusted else _marked(part) for part, trusted in segments)
        owner = current_tenant.get().owner
        anchor = self._known_part(owner, namespace, text)
        if anchor is None:
            tokens = await self._encoder.encode_async(segments, at_start=True, bound=bound)
            return EncodedPrompt(owner, namespace, text, tokens)
        pieces = [*anchor.chain()]
        self._forget_excess()  # the anchor may be new, and nothing may be remembered of this request
        tokens = []
        for piece in reversed(pieces):
            tokens.extend(piece.ids)
        num_known = len(tokens)
        if anchor.end < len(text):
            tokens += await self._rest(segments, text, anchor.end, tokens[-1], bound)
        if bound is not None and len(tokens) > bound.most:
            raise bound.error(len(tokens))
        num_remembered = sum(len(piece.ids) for piece in pieces if piece.is_generated)
        return EncodedPrompt(owner, namespace, text, tokens, anchor, num_known, num_remembered)

    def remember(self, conversation: EncodedPrompt, generated: Sequence[int]) -> None:
        """Remember the ids of a prompt and of an answer to it, as far as a later prompt can repeat its text."""
        anchor = self._add_prompt(conversation)
        text, num = self._tokens.text(generated)
        if num:
            ids = self._tokens.shared(generated[:num])
            self._add(
                (conversation.owner, conversation.namespace), conversation.text + text, anchor, ids, is_generated=True
            )
        self._forget_excess()

    def remember_without(self, conversation: EncodedPrompt, before: str, generated: Sequence[int]) -> None:
        """Remember the last ids of an answer as they follow `before`, a beginning of the prompt.

        That is how a later prompt repeats them when what was between is left out: an answer's reasoning.
        """
        text, num = self._tokens.text(generated)
        place = conversation.owner, conversation.namespace
        anchor = self._whole_part(place, before)
        if num and anchor is not None:
            ids = self._tokens.shared(generated[:num])
            self._add(place, before + text, anchor, ids, is_generated=True)
            self._forget_excess()

    def after(self, generated: Sequence[int], marker: str) -> Sequence[int]:
        """Return the ids after the last `marker` and the blanks that follow it; none if it ends within a token."""
        text, num = self._tokens.text(generated)
        at = text.rfind(marker)
        if at < 0:
            return ()
        begin = at + len(marker)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        ends, is_whole = self._tokens.ends(generated[:num])
        index = int(np.searchsorted(ends, begin, side="right")) - 1
        return generated[index + 1 :] if index >= 0 and ends[index] == begin and is_whole[index] else ()

    def _forget_excess(self) -> None:
        while self.num_bytes > self._max_bytes:
            if not max(self._trees.values(), key=lambda each: each.num_bytes).forget_oldest():
                break

    def _tree(self, owner: str) -> HistoryTree:
        return self._trees.setdefault(owner, HistoryTree())

    def _add(
        self,
        place: tuple[str, str],
        text: str,
        base: HistoryAnchor | None,
        ids: tuple[int, ...],
        *,
        is_generated: bool,
        is_divided: bool = False,
    ) -> HistoryAnchor:
        """Remember that `ids` lead from `base` to the end of `text`, of an owner and namespace; also in the journal."""
        owner, namespace = place
        anchor = self._tree(owner).add(namespace, text, base, ids, is_generated=is_generated, is_divided=is_divided)
        if self._journal is not None and not anchor.number:
            self._journal.note(self._saved(owner, namespace, text, anchor))
        return anchor

    def _saved(self, owner: str, namespace: str, text: str, anchor: HistoryAnchor) -> SavedAnchor:
        """Return an anchor within `text` as the journal has it."""
        anchor.number = next(self._numbers)
        return SavedAnchor(
            owner,
            namespace.encode("utf-8", "surrogatepass"),
            anchor.number,
            None if anchor.base is None else anchor.base.number,
            text[anchor.start : anchor.end].encode("utf-8", "surrogatepass"),
            pack(anchor.ids),
            anchor.is_generated,
            anchor.is_divided,
        )

    def _all_saved(self) -> Iterator[SavedAnchor]:
        """Yield all that is remembered, what was used last at the end."""
        done: set[HistoryAnchor] = set()
        for owner, tree in self._trees.items():
            for namespace, text, leaf in tree.leaves():
                new = list(takewhile(lambda anchor: anchor not in done, leaf.chain()))
                done.update(new)
                for anchor in reversed(new):
                    yield self._saved(owner, namespace, text, anchor)

    def _restore(self, journal: Journal) -> None:
        """Remember what the files of all frontends have, and keep the journal up to date."""
        own = [record for record in journal.records if isinstance(record, SavedAnchor)]
        self._numbers = count(max((record.number for record in own), default=0) + 1)
        self._replay(own, is_own=True)
        for records in journal.read_others():
            self._replay([record for record in records if isinstance(record, SavedAnchor)], is_own=False)
        self._forget_excess()
        journal.rewrites.append(self._all_saved)

    def _replay(self, records: Sequence[SavedAnchor], *, is_own: bool) -> None:
        """Add what one file has. Nothing may be forgotten meanwhile: texts are read from the nodes of their bases."""
        found: dict[int, tuple[HistoryAnchor, HistoryNode]] = {}
        last, last_text = None, ""
        for record in records:
            base = None if record.base is None else found.get(record.base)
            if record.base is not None and base is None:
                continue  # it was replaced before the file was written anew
            before = "" if base is None else last_text if record.base == last else base[1].whole_text()
            text = before + record.text.decode("utf-8", "surrogatepass")
            place = record.owner, record.namespace.decode("utf-8", "surrogatepass")
            ids = self._tokens.shared(unpack(record.ids))
            kind = {"is_generated": record.is_generated, "is_divided": record.is_divided}
            if is_own:
                anchor = self._tree(place[0]).add(place[1], text, None if base is None else base[0], ids, **kind)
                anchor.number = record.number
            else:
                anchor = self._add(place, text, None if base is None else base[0], ids, **kind)
            assert anchor.node is not None
            found[record.number] = anchor, anchor.node
            last, last_text = record.number, text

    async def _rest(
        self, segments: Sequence[PromptSegment], text: str, at: int, last: int, bound: TokenLimit | None
    ) -> list[int]:
        """Return the ids of a prompt from the character `at` on. `last` is the id before it.

        From the next special token on they are those that the tokenizer gives to the whole prompt.
        """
        name = self._tokens.name_of(last)
        is_after = bool(name) and text.endswith(name, 0, at)
        begin = at - len(name) if is_after else self._tokens.next_special(text, at)
        ids: list[int] = []
        if begin > at:
            ids = await self._encoder.encode_async(_between(segments, at, begin), at_start=False, bound=bound)
        if begin < len(text):
            rest = _between(segments, begin, len(text))
            continues = not all(trusted for _, trusted in _between(segments, 0, begin))
            more = await self._encoder.encode_async(rest, at_start=False, after=continues, bound=bound)
            ids += more[more.index(last) + 1 :] if is_after else more
        return ids

    def _known_part(self, owner: str, namespace: str, text: str) -> HistoryAnchor | None:
        """Return the anchor at the end of the longest remembered beginning of `text` that the ids can be cut after."""
        tree = self._tree(owner)
        found = tree.longest(namespace, text)
        if found is None:
            return None
        last, num = found
        for anchor in last.chain():
            if not anchor.is_generated:
                if anchor.is_divided and self._tokens.special_end(text, anchor.end) <= num:
                    tree.touch(anchor)
                    return anchor
            elif anchor.end <= num and self._tokens.is_clean(text, anchor.end):
                tree.touch(anchor)
                return anchor
            elif anchor.start < num and (cut := self._last_cut(anchor, text, num)) is not None:
                num_ids, end = cut
                return self._add((owner, namespace), text[:end], anchor.base, anchor.ids[:num_ids], is_generated=True)
        return None

    def _whole_part(self, place: tuple[str, str], text: str) -> HistoryAnchor | None:
        """Return the anchor at the end of `text`, which generated ids will follow; None if its ids do not end there."""
        owner, namespace = place
        found = self._tree(owner).longest(namespace, text)
        if found is None or found[1] < len(text):
            return None
        for anchor in found[0].chain():
            if anchor.end == len(text):
                return anchor
            if anchor.start < len(text) < anchor.end:
                num = self._tokens.num_ids_of(text[anchor.start :], anchor.ids, is_first=anchor.base is None)
                if num is None:
                    return None
                ids = anchor.ids[:num]
                return self._add(place, text, anchor.base, ids, is_generated=anchor.is_generated)
        return None

    def _last_cut(self, anchor: HistoryAnchor, text: str, num: int) -> tuple[int, int] | None:
        """Return how many ids of the anchor lead to its last place for a cut up to character `num`, and that place."""
        ends, is_whole = self._tokens.ends(anchor.ids)
        last = int(np.searchsorted(ends, num - anchor.start, side="right")) - 1
        for index in range(last, max(-1, last - MAX_CUTS), -1):
            end = anchor.start + int(ends[index])
            if is_whole[index] and end > anchor.start and self._tokens.is_clean(text, end):
                return index + 1, end
        return None

    def _add_prompt(self, conversation: EncodedPrompt) -> HistoryAnchor | None:
        """Remember the part of a prompt that was not known, divided at special tokens."""
        place = conversation.owner, conversation.namespace
        anchor, num_known = conversation.anchor, conversation.num_known
        if anchor is not None and not anchor.is_live:
            anchor, num_known = None, 0
        start = 0 if anchor is None else anchor.end
        tokens = conversation.tokens[num_known:]
        if not tokens:
            return anchor
        first = 0
        least = max(MIN_PIECE, len(tokens) // MAX_PIECES)
        for index, at in self._tokens.special_cuts(conversation.text[start:], tokens):
            if index - first >= least:
                anchor = self._add(
                    place,
                    conversation.text[: start + at],
                    anchor,
                    self._tokens.shared(tokens[first:index]),
                    is_generated=False,
                    is_divided=True,
                )
                first = index
        ids = self._tokens.shared(tokens[first:])
        return self._add(place, conversation.text, anchor, ids, is_generated=False)


class TokenTextIndex:
    """Texts of token ids: where each token ends, and where ids can be cut. Special tokens have their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special_ids = frozenset(tokenizer.special_ids.values())
        names = sorted(tokenizer.special_ids, key=len, reverse=True)
        self._longest_name = max(map(len, names), default=0)
        any_name = "|".join(map(re.escape, names)) or r"(?!)"
        self._name = re.compile(any_name)
        self._names = re.compile(f"(?=({any_name}))")  # a lookahead, as names may overlap

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each id; the last entry is that of ids without a token."""
        names = {token: name.encode() for name, token in self._tokenizer.special_ids.items()}
        return [*(names.get(token, data or b"") for token, data in enumerate(self._tokenizer.token_bytes)), b""]

    @cached_property
    def _widths(self) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Number of characters that begin in each token, and whether its first byte continues one."""
        counts = [sum(byte & 0xC0 != 0x80 for byte in data) for data in self._bytes]
        continues = [bool(data) and data[0] & 0xC0 == 0x80 for data in self._bytes]
        return np.array(counts, np.int32), np.array(continues, np.bool_)

    @cached_property
    def _numbers(self) -> list[int]:
        return list(range(self._tokenizer.vocab_size))

    def shared(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids as integers that all pieces share: prompts are put together without making new ones."""
        numbers = self._numbers
        return tuple([numbers[token] if token < len(numbers) else token for token in ids])

    def text(self, ids: Sequence[int]) -> tuple[str, int]:
        """Return the text of the first ids, and their number: as many as a rendered prompt can repeat.

        It cannot repeat bytes that are not UTF-8, marks of the renderer, and names of special tokens that ordinary
        tokens spell.
        """
        texts = self._bytes
        data = [texts[min(token, len(texts) - 1)] for token in ids]
        num = len(data)
        try:
            text = b"".join(data).decode()
        except UnicodeDecodeError as error:
            num = sum(end <= error.start for end in accumulate(map(len, data)))
            text = b"".join(data[:num]).decode(errors="ignore")
        ends, is_whole = self.ends(ids[:num])
        limits = [at for mark in CONTENT_MARKS if (at := text.find(mark)) >= 0]
        special = {int(ends[index]): len(data[index]) for index in self.special_places(ids[:num])}
        for match in self._names.finditer(text):
            begin, end = match.span(1)
            if special.get(end) != len(match[1].encode()) and not any(
                last - size <= begin and end <= last for last, size in special.items()
            ):
                limits.append(begin)
                break
        limit = min(limits, default=len(text))
        while num and (ends[num - 1] > limit or not is_whole[num - 1]):
            num -= 1
        return text[: int(ends[num - 1]) if num else 0], num

    def ends(self, ids: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the character at which each token ends, and whether it ends at the end of one."""
        counts, continues = self._widths
        rows = np.minimum(np.asarray(ids, dtype=np.int64), len(counts) - 1)
        is_whole = np.ones(len(rows), np.bool_)
        is_whole[:-1] = ~continues[rows[1:]]
        return np.cumsum(counts[rows]), is_whole

    def num_ids_of(self, text: str, ids: Sequence[int], *, is_first: bool) -> int | None:
        """Return how many of the first ids have that text; None if it ends within one.

        `is_first`: BOS, which adds no text, may come before it.
        """
        texts, data, begin = self._bytes, text.encode(), 0
        has_bos = is_first and ids[0] in self._special_ids and not text.startswith(self.name_of(ids[0]))
        for num, token in enumerate(ids[has_bos:], has_bos):
            if begin == len(data):
                return num
            each = texts[min(token, len(texts) - 1)]
            if not data.startswith(each, begin):
                return None
            begin += len(each)
        return len(ids) if begin == len(data) else None

    def name_of(self, token: int) -> str:
        """Return the name of a special token; "" for other ids."""
        return self._bytes[token].decode() if token in self._special_ids else ""

    def next_special(self, text: str, at: int) -> int:
        """Return where the first name of a special token begins from `at` on; the end of the text if there is none."""
        found = self._name.search(text, at)
        return len(text) if found is None else found.start()

    def special_end(self, text: str, at: int) -> float:
        """Return the end of the special token's name that begins at `at`; infinity if there is none."""
        found = self._name.match(text, at)
        return inf if found is None else found.end()

    def special_cuts(self, text: str, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return index and first character of each special token of a prompt; none unless the text names all of them.

        BOS at the beginning may be the tokenizer's own.
        """
        places = self.special_places(ids)
        names = [(found.start(), found[0]) for found in self._name.finditer(text)]
        if len(places) == len(names) + 1 and places[0] == 0:
            del places[0]
        if [self.name_of(ids[index]) for index in places] != [name for _, name in names]:
            return []
        return [(index, at) for index, (at, _) in zip(places, names, strict=True)]

    def special_places(self, ids: Sequence[int]) -> list[int]:
        """Return the indices of special tokens."""
        return [index for index, token in enumerate(ids) if token in self._special_ids]

    def is_clean(self, text: str, at: int) -> bool:
        """Return True if generated ids may end at the character `at` of a rendered prompt.

        They may not within the name of a special token, and not within what a tokenizer takes for one word.
        """
        if at == len(text) or not at:
            return bool(at)
        before, after = text[at - 1], text[at]
        if after == SPLIT:  # the client's own text names a special token, of which `before` is the beginning
            return False
        begin = max(0, at - self._longest_name)
        names = [match.span(1) for match in self._names.finditer(text, begin, at + self._longest_name)]
        if any(first < at < last for first, last in names):
            return False
        if any(at in span for span in names):
            return True
        if before.isspace():
            return before == "\n" and not after.isspace()
        return after.isspace() or (before.isalnum() and not after.isalnum())


def _marked(name: str) -> str:
    """Return the client's name of a special token as the renderer marks it."""
    return f"{name[:1]}{SPLIT}{name[1:]}"


def _between(segments: Sequence[PromptSegment], begin: int, end: int) -> list[PromptSegment]:
    """Return the segments between two characters of their marked text, neither of which is in a client's name."""
    found: list[PromptSegment] = []
    start = 0
    for text, trusted in segments:
        size = len(text) + (not trusted)
        first, last = max(begin - start, 0), min(end - start, size)
        if first < last:
            found.append(PromptSegment(text[first:last] if trusted else text, trusted))
        start += size
    return found
