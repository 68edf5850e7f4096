"""Drafts for requests from their own texts and from outputs of other requests of the same cache namespace.

Live outputs are shared some tokens late; those of requests that ended stay until they are the least recently used and
their room is needed. Prompts are not shared, but for the few tokens before an output by which it is found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from .....loops import ready
from ..tree import DraftTree
from .index import IndexedText, SuffixIndex
from .loops import BLOCK_SLOTS

MAX_OWN_TOKENS = 1 << 15  # last tokens of a request's text that are indexed when it is drafted for first
_CONTEXT_TOKENS = 16  # of the prompt, before a shared output
MIN_SHARED_TOKENS = 4  # of an output, so that it is worth sharing
SHARE_INTERVAL = 16  # tokens after which a live output is shared
_PACKAGE = "ramiform.runtime.scheduler.drafts.suffix"  # whose loops may be postponed: until then there are no drafts


@dataclass(eq=False)
class _Texts:
    """Indexed texts of a request: all of its text from token `own_start` on, and its output with some context."""

    own: IndexedText
    own_start: int
    shared: IndexedText
    shared_start: int
    full: bool = False  # there was no room, so the texts lack tokens

    @property
    def num_own(self) -> int:
        return self.own_start + self.own.num_tokens

    @property
    def num_shared(self) -> int:
        return self.shared_start + self.shared.num_tokens


@dataclass
class _Namespace:
    scope: int
    num_texts: int = 0


class SuffixDrafts:
    """Draft source over an index. Knows requests by id."""

    def __init__(self, index: SuffixIndex | None = None) -> None:
        self._index = SuffixIndex() if index is None else index
        self._live: dict[str, _Texts] = {}
        self._ended: OrderedDict[int, tuple[str, IndexedText]] = OrderedDict()  # least recently used first, by number
        self._namespaces: dict[str, _Namespace] = {}
        self._num_scopes = 0

    def propose(
        self,
        rid: str,
        tokens: Sequence[int],
        num_prompt: int,
        namespace: str,
        *,
        steps: int,
        top_k: int,
        num_tokens: int,
    ) -> DraftTree | None:
        """Draft for a request whose text is `tokens`; None if its end occurred nowhere before.

        Between calls a request's tokens may only grow.
        """
        if not ready(_PACKAGE):
            return None
        texts = self._live.get(rid)
        if texts is None:
            texts = self._live[rid] = self._begin(len(tokens), num_prompt, namespace)
        if not texts.full:
            texts.full = not self._append(texts.own, tokens, texts.num_own)
        if not texts.full and len(tokens) - texts.num_shared >= SHARE_INTERVAL:
            texts.full = not self._append(texts.shared, tokens, texts.num_shared)
        if texts.full:
            return None
        match = self._index.propose(
            texts.own,
            steps=steps,
            top_k=top_k,
            num_tokens=num_tokens,
            shared=texts.shared.scope,
            excluded=texts.shared.number,
        )
        if match is None:
            return None
        if match.text in self._ended:
            self._ended.move_to_end(match.text)
        return match.tree

    def end(self, rid: str, tokens: Sequence[int], num_prompt: int, namespace: str) -> None:
        """Record that the request ended with these tokens: forget its own text, keep its output for others."""
        if not ready(_PACKAGE):
            return
        texts = self._live.pop(rid, None)
        is_worth_sharing = len(tokens) >= num_prompt + MIN_SHARED_TOKENS
        if texts is None:
            if not is_worth_sharing:
                return
            texts = self._begin(len(tokens), num_prompt, namespace)
        self._index.remove(texts.own)
        if is_worth_sharing and not texts.full and self._append(texts.shared, tokens, texts.num_shared):
            self._ended[texts.shared.number] = namespace, texts.shared
        else:
            self._forget(namespace, texts.shared)

    def flush(self) -> None:
        """Forget the outputs of requests that ended."""
        while self._ended:
            _, (namespace, text) = self._ended.popitem()
            self._forget(namespace, text)

    def _begin(self, num_tokens: int, num_prompt: int, namespace: str) -> _Texts:
        space = self._namespaces.get(namespace)
        if space is None:
            space = self._namespaces[namespace] = _Namespace(self._new_scope())
        space.num_texts += 1
        return _Texts(
            own=self._index.add(self._new_scope()),
            own_start=max(0, num_tokens - MAX_OWN_TOKENS),
            shared=self._index.add(space.scope),
            shared_start=max(0, num_prompt - _CONTEXT_TOKENS),
        )

    def _new_scope(self) -> int:
        self._num_scopes += 1
        return self._num_scopes

    def _append(self, text: IndexedText, tokens: Sequence[int], start: int) -> bool:
        """Append the tokens from `start` on. Returns False if there is no room, even without ended requests."""
        new = tokens[start:]
        while self._index.num_free < len(new) + BLOCK_SLOTS:
            if not self._ended:
                return False
            _, (namespace, oldest) = self._ended.popitem(last=False)
            self._forget(namespace, oldest)
        self._index.append(text, new)
        return True

    def _forget(self, namespace: str, shared: IndexedText) -> None:
        self._index.remove(shared)
        space = self._namespaces[namespace]
        space.num_texts -= 1
        if not space.num_texts:
            del self._namespaces[namespace]
