"""A core finds the ids of its tokenizer that have no text."""

from __future__ import annotations

from ramiform.runtime.core.load import textless_tokens
from ramiform.runtime.scheduler.interfaces import VocabularyInfo


def test_ids_without_text_are_those_that_are_neither_bytes_nor_named() -> None:
    """A vocabulary that is padded to a round number ends in ids that mean nothing: nobody could read them."""
    vocabulary = VocabularyInfo(7, [b"a", None, None, b"", None, b"b", None], frozenset({2}), {"<|im_start|>": 1})
    assert textless_tokens(vocabulary) == [4, 6]
    assert textless_tokens(VocabularyInfo(2, [b"a", b"b"], frozenset())) == []
