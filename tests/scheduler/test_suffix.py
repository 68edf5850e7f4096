"""Suffix decoding. Judge: a search through all texts, token by token, and a tree grown by recursion."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.scheduler.drafts.suffix import SuffixDrafts, SuffixIndex
from ramiform.runtime.scheduler.drafts.suffix.index import IndexedText
from ramiform.runtime.scheduler.drafts.suffix.loops import (
    BLOCK_SLOTS,
    CONFIDENCE,
    MAX_COMPARED,
    MAX_FOUND,
    MIN_PROBABILITY,
    ORDERS,
)

Occurrence = tuple[list[int], int]  # the tokens that follow it, and how many before agree


class NaiveTexts:
    """All texts, with every position in order of its arrival."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[int, list[int]]] = {}  # scope and tokens
        self.arrived: list[tuple[int, int]] = []  # text and end

    def append(self, number: int, scope: int, tokens: list[int]) -> None:
        _, text = self.texts.setdefault(number, (scope, []))
        for token in tokens:
            text.append(token)
            self.arrived.append((number, len(text)))

    def remove(self, number: int) -> None:
        self.texts.pop(number, None)
        self.arrived = [(other, end) for other, end in self.arrived if other != number]

    def matches(self, number: int, scope: int, excluded: int) -> list[Occurrence]:
        """Newest occurrences of the longest of the n-grams that ends the text."""
        query = self.texts[number][1]
        for order in sorted(ORDERS.tolist(), reverse=True):
            found: list[Occurrence] = []
            for other, end in reversed(self.arrived):
                other_scope, text = self.texts[other]
                if other_scope != scope or other == excluded or (other, end) == (number, len(query)):
                    continue
                length = agreeing(query, text[:end])
                if length >= order and end < len(text):
                    found.append((text[end:], length))
            if found:
                return found[:MAX_FOUND]
        return []


def agreeing(one: list[int], other: list[int]) -> int:
    """Number of last tokens that agree."""
    length = 0
    while length < min(len(one), len(other), MAX_COMPARED) and one[-1 - length] == other[-1 - length]:
        length += 1
    return length


def grown(found: list[Occurrence], steps: int, top_k: int) -> dict[tuple[int, ...], float]:
    """Log-probability of each path, by recursion over shares of weight."""
    longest = max(length for _, length in found)
    paths: dict[tuple[int, ...], float] = {}

    def grow(path: tuple[int, ...], above: float, at: list[tuple[list[int], float]]) -> None:
        if len(path) == steps:
            return
        children: dict[int, list[tuple[list[int], float]]] = defaultdict(list)
        for rest, weight in at:
            if rest:
                children[rest[0]].append((rest[1:], weight))
        whole = sum(weight for _, weight in at)
        confidence = float(CONFIDENCE[min(longest + len(path), len(CONFIDENCE) - 1)])
        ranked = sorted(children.items(), key=lambda child: -sum(weight for _, weight in child[1]))
        for token, own in ranked[:top_k]:
            likely = above * confidence * sum(weight for _, weight in own) / whole
            if likely >= MIN_PROBABILITY:
                paths[*path, token] = math.log(likely)
                grow((*path, token), likely, own)

    grow((), 1.0, [(rest, 0.5 ** (longest - length)) for rest, length in found])
    return paths


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), max_size=BLOCK_SLOTS + 6)), min_size=1, max_size=24
    ),
    steps=st.integers(1, 6),
    top_k=st.integers(1, 3),
)
def test_trees_are_those_of_a_naive_search(events: list[tuple[int, list[int]]], steps: int, top_k: int) -> None:
    """Texts 0 and 1 have scopes of their own, 2 to 4 share one; an event without tokens removes its text."""
    index, naive = SuffixIndex(1 << 12), NaiveTexts()
    texts: dict[int, IndexedText] = {}
    for which, tokens in events:
        if not tokens:
            if which in texts:
                text = texts.pop(which)
                index.remove(text)
                naive.remove(text.number)
            continue
        if which not in texts:
            texts[which] = index.add(1 + min(which, 2))
        text = texts[which]
        index.append(text, tokens)
        naive.append(text.number, text.scope, tokens)
        for query in (text for which, text in texts.items() if which < 2):
            excluded = texts[4].number if 4 in texts else 0
            match = index.propose(query, steps=steps, top_k=top_k, num_tokens=96, shared=3, excluded=excluded)
            found = naive.matches(query.number, query.scope, -1) + naive.matches(query.number, 3, excluded)
            assert (match is None) == (not found)
            if match is None:
                continue
            assert match.length == max(length for _, length in found)
            tree = match.tree
            paths = {tuple(tree.path(node)): tree.scores[node] for node in range(len(tree))}
            assert paths == pytest.approx(grown(found, steps, top_k))
            assert all(parent < node for node, parent in enumerate(tree.parents))
            few = index.propose(query, steps=steps, top_k=top_k, num_tokens=3, shared=3, excluded=excluded)
            assert few is not None
            assert sorted(few.tree.scores) == pytest.approx(sorted(paths.values())[-3:])
    for text in texts.values():
        index.remove(text)
    assert index.num_free == 1 << 12
    assert not index._heads.any(), "a removed text left links"


def test_a_long_match_is_found_behind_many_short_ones() -> None:
    index = SuffixIndex(1 << 14)
    text = index.add(1)
    long = list(range(10, 40))
    index.append(text, [*long, 7])
    for filler in range(200):  # ends of the same two tokens, with other tokens before and after
        index.append(text, [100 + filler, *long[-2:], 1000 + filler])
    index.append(text, long)
    match = index.propose(text, steps=2, top_k=4, num_tokens=8)
    assert match is not None
    assert match.length == len(long)
    assert match.tree.tokens[0] == 7


def draft(drafts: SuffixDrafts, rid: str, tokens: list[int], num_prompt: int, namespace: str = "") -> list[int]:
    """The likeliest path."""
    tree = drafts.propose(rid, tokens, num_prompt, namespace, steps=4, top_k=1, num_tokens=4)
    return [] if tree is None else tree.tokens


def test_outputs_are_shared_within_a_namespace_only_and_prompts_are_not() -> None:
    drafts = SuffixDrafts(SuffixIndex(1 << 12))
    prompt, output = list(range(100, 150)), list(range(200, 260))
    drafts.end("first", prompt + output, len(prompt), "ours")
    assert draft(drafts, "same", prompt, len(prompt), "ours") == output[:4]
    assert draft(drafts, "later", [1, *output[:9]], 1, "ours") == output[9:13]
    assert draft(drafts, "other", prompt, len(prompt), "theirs") == []
    assert draft(drafts, "none", output[:9], 9, "") == []
    assert draft(drafts, "prompt", prompt[:20], 20, "ours") == []  # its continuation was prompt, not output


def test_a_live_output_serves_other_branches() -> None:
    drafts = SuffixDrafts(SuffixIndex(1 << 12))
    text = list(range(300))
    for end in range(101, 180):
        assert draft(drafts, "one", text[:end], 100) == []
    assert draft(drafts, "two", [*range(500, 600), *text[120:130]], 100) == text[130:134]


def test_the_least_recently_used_output_is_forgotten_when_room_is_needed() -> None:
    num_tokens = 1 << 10
    drafts = SuffixDrafts(SuffixIndex(num_tokens))
    outputs = [list(range(1000 * n, 1000 * n + 100)) for n in range(1, 20)]
    kept = outputs[0]
    for number, output in enumerate(outputs):
        drafts.end(f"r{number}", [1, *output], 1, "")
        assert draft(drafts, f"q{number}", [1, *kept[10:20]], 1) == kept[20:24], "it was used all the time"
        drafts.end(f"q{number}", [1, *kept[10:20]], 11, "")
    assert draft(drafts, "last", [1, *outputs[-1][:9]], 1) == outputs[-1][9:13]
    assert draft(drafts, "gone", [1, *outputs[2][:9]], 1) == []


def test_a_flush_forgets_the_outputs_of_ended_requests_and_keeps_live_ones() -> None:
    index = SuffixIndex(1 << 12)
    drafts = SuffixDrafts(index)
    text = list(range(300))
    drafts.end("ended", text[:200], 100, "")
    for end in (201, 240):
        draft(drafts, "live", [*range(1000, 1200), *text[200:end]], 200)
    drafts.flush()
    assert draft(drafts, "one", [1, *text[120:130]], 1) == []
    assert draft(drafts, "two", [1, *text[210:220]], 1) == text[220:224]
    for rid in ("live", "one", "two"):
        drafts.end(rid, [1], 1, "")
    assert index.num_free == 1 << 12


def test_a_text_without_room_is_not_drafted_for_and_gives_its_room_back() -> None:
    index = SuffixIndex(1 << 9)
    drafts = SuffixDrafts(index)
    text = [1, 2, 3, 4] * 200
    assert draft(drafts, "long", text, len(text)) == []
    assert draft(drafts, "short", text[:40], 40) == [1, 2, 3, 4]
    for rid, length in (("long", 800), ("short", 40), ("never drafted for", 10)):
        drafts.end(rid, text[:length], length, "")  # no output, nothing to keep
    assert index.num_free == 1 << 9
