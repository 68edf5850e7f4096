"""Random structural tags and texts, judged by a naive reader and by xgrammar.

More by hand: python -P tests/constrained/tags/test_differential_tags.py FIRST LAST
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ramiform.constrained import CompiledGrammar, StructuralTag, compile_constraint
from ramiform.tests.constrained.tags.naive_tags import (
    END,
    SPECIAL,
    NaiveTags,
    RandomTags,
    pieces_of,
    token_number,
    token_vocabulary,
)
from ramiform.tests.constrained.walks import allowed
from ramiform.tests.fuzzing import fuzz

NUM_TEXTS = 4  # of each tag


@pytest.mark.exhaustive
@fuzz(st.integers(0, 1 << 40), examples=500)
def test_random_tags_agree_with_a_naive_reader(seed: int) -> None:
    judge(seed)


def judge(seed: int) -> None:
    """Compare a random tag with the naive reader on random texts."""
    made = RandomTags(seed, has_tokens=seed % 2 == 1)
    spec = made.format()
    grammar = compile_constraint(StructuralTag({"format": spec}), token_vocabulary(), whitespace="compact")
    for _ in range(NUM_TEXTS):
        pieces = pieces_of(made.text(spec), made.rng)
        expected = sum(map(len, pieces)) in NaiveTags(pieces).ends_of(spec)
        assert reads(grammar, pieces) == expected, (seed, pieces, json.dumps(spec))


def reads(grammar: CompiledGrammar, pieces: list[str]) -> bool:
    """Return True if the tokens are accepted as a whole text. Each is accepted exactly if the mask has it."""
    matcher = grammar.matcher()
    for piece in pieces:
        token = token_number(piece)
        is_allowed = token in allowed(matcher, token_vocabulary())
        assert matcher.accept(token) == is_allowed, (pieces, piece)
        if not is_allowed:
            return False
    return matcher.is_accepting()


@pytest.mark.slow
def test_xgrammar_reads_its_documentation_as_the_naive_reader_does() -> None:
    """Leaves out what docs/use/constrained.md lists as settled by the documentation."""
    xgrammar = pytest.importorskip("xgrammar", exc_type=ImportError)  # the extra `backends`
    # It has no special tokens: these have bytes that are in no text.
    tokens = [data or b"\xff%d" % number for number, data in enumerate(token_vocabulary().tokens)]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=len(tokens), stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    num_judged = 0
    for seed in range(1000):
        made = RandomTags(seed, has_tokens=seed % 2 == 1)
        spec = made.format()
        if is_settled(spec):
            continue
        try:
            compiled = compiler.compile_structural_tag({"type": "structural_tag", "format": _with_numbers(spec)})
        except RuntimeError:
            continue  # a stack of its own is too small for some nested repeats
        for _ in range(NUM_TEXTS):
            pieces = pieces_of(made.text(spec), made.rng)
            matcher = xgrammar.GrammarMatcher(compiled)
            accepted = _follows(matcher, pieces) and matcher.is_completed()
            expected = sum(map(len, pieces)) in NaiveTags(pieces).ends_of(spec)
            assert accepted == expected, (seed, pieces, json.dumps(spec))
            num_judged += 1
    assert num_judged > 1500


def _follows(matcher: Any, pieces: list[str]) -> bool:
    """Return True if xgrammar's masks allow the tokens. Its budgets of tokens are enforced by masks only."""
    mask = np.zeros((1, -(-len(token_vocabulary()) // 32)), np.int32)
    for token in map(token_number, pieces):
        matcher.fill_next_token_bitmask(mask)
        if not mask[0, token >> 5] >> (token & 31) & 1 or not matcher.accept_token(token):
            return False
    return True


def _with_numbers(spec: Any) -> Any:
    """Return a format with tokens by number, in which other tokens are not special ones."""
    if isinstance(spec, list):
        return [_with_numbers(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    number = token_vocabulary().number_of
    found = {name: _with_numbers(part) for name, part in spec.items()}
    if "token" in spec:
        found["token"] = number(spec["token"])
    if "trigger_tokens" in spec:
        found["trigger_tokens"] = [*map(number, spec["trigger_tokens"])]
    if spec.get("type") == "token_dispatch":
        found["rules"] = [[number(token), _with_numbers(part)] for token, part in spec["rules"]]
    if spec.get("type") in ("exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"):
        patterns = [*spec.get("trigger_tokens", ()), *(token for token, _ in spec.get("rules", ()))]
        others = [token for token in SPECIAL if token not in patterns]
        found["exclude_tokens"] = [number(token) for token in (*spec.get("exclude_tokens", ()), *others)]
    return found


def is_settled(spec: Any) -> bool:
    """Return True for free text in which xgrammar does not do as its documentation says.

    It splits characters of several bytes, and it passes a pattern with which an exclusion begins. Inside repeats it
    cannot read `token_dispatch`.
    """
    texts = json.dumps(spec, ensure_ascii=False)
    has_repeats = any(f'"{kind}"' in texts for kind in ("optional", "plus", "star", "repeat"))
    if '"token_dispatch"' in texts and has_repeats:
        return True
    return "é" in texts or (('"dispatch"' in texts or "triggered" in texts) and '"<a>"' in texts)


if __name__ == "__main__":
    for number in range(*map(int, sys.argv[1:])):
        judge(number)
