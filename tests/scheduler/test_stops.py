"""Stop strings, patterns and tokens."""

from __future__ import annotations

from ramiform.runtime.protocol.core import Finish
from ramiform.runtime.protocol.sampling import Constraint, SamplingParams
from ramiform.runtime.scheduler.interfaces import VocabularyInfo
from ramiform.runtime.scheduler.stops import StopRules

from .fake_model import EOS, VOCABULARY


def feed(ids: list[int], **params: object) -> list[Finish | None]:
    rules = StopRules(SamplingParams(**params), VOCABULARY)  # type: ignore[arg-type]
    return [rules.feed(token, n) for n, token in enumerate(ids)]


def test_a_stop_string_may_begin_before_min_new_tokens_but_not_end_there() -> None:
    assert feed([2, 3, 2, 3], stop=("ab",), min_new_tokens=2) == [None, None, None, Finish("stop", "ab")]
    assert feed([2, 3], stop=("ab",), min_new_tokens=1) == [None, Finish("stop", "ab")]


def test_the_stop_that_is_complete_first_ends_the_output_and_of_those_the_longest() -> None:
    assert feed([2, 3], stop=("b",), stop_regex=("a+b",)) == [None, Finish("stop", "ab")]
    assert feed([4], stop=("ab",), stop_regex=("a",)) == [Finish("stop", "a")]
    assert feed([2, 2, 2], stop_regex=("a+",), min_new_tokens=2) == [None, None, Finish("stop", "aaa")]


def test_asking_whether_a_token_would_end_the_output_changes_nothing() -> None:
    rules = StopRules(SamplingParams(stop_regex=("ab+a",)), VOCABULARY)
    for place, token in enumerate([2, 3, 3]):
        assert not rules.would_end(token, place)
        assert rules.would_end(2, place) == (place > 1)
        assert rules.feed(token, place) is None
    assert rules.would_end(2, 3)
    assert rules.feed(2, 3) == Finish("stop", "abba")


def test_a_special_token_parts_a_stop_string_only_where_it_is_shown() -> None:
    assert feed([2, 1, 3], stop=("ab",)) == [None, None, Finish("stop", "ab")]
    assert feed([2, 1, 3], stop=("ab",), skip_special_tokens=False) == [None, None, None]


def test_eos_ends_a_constrained_output_even_where_it_is_ignored() -> None:
    constraint = Constraint("regex", "x")
    assert feed([EOS], ignore_eos=True) == [None]
    assert feed([EOS], ignore_eos=True, constraint=constraint) == [Finish("stop", EOS)]
    assert feed([EOS], min_new_tokens=3, constraint=constraint) == [Finish("stop", EOS)]


def test_before_min_new_tokens_whatever_would_end_the_output_is_avoided() -> None:
    rules = StopRules(SamplingParams(min_new_tokens=2, stop_token_ids=(5,)), VOCABULARY)
    assert rules.suppressed(1) == {EOS, 5}
    assert rules.suppressed(2) == set()
    ignoring = StopRules(SamplingParams(min_new_tokens=2, stop_token_ids=(5,), ignore_eos=True), VOCABULARY)
    assert ignoring.suppressed(1) == {5}


def test_of_several_ends_a_constrained_output_that_can_only_end_has_one() -> None:
    vocabulary = VocabularyInfo(40, [b"a"] * 38 + [None, None], frozenset({38, 39}), forced_end=39)

    def words(*tokens: int) -> bytes:
        return sum(1 << token for token in tokens).to_bytes(8, "little")

    constrained = StopRules(SamplingParams(constraint=Constraint("regex", "a")), vocabulary)
    assert constrained.with_one_end(words(38, 39)) == constrained.with_one_end(words(39)) == words(39)
    assert constrained.is_only_end(words(39))
    for mask in (words(38), words(0, 38, 39), words(0, 1), None):
        assert constrained.with_one_end(mask) == mask
        assert not constrained.is_only_end(mask)
    free = StopRules(SamplingParams(), vocabulary)
    assert free.with_one_end(words(38, 39)) == words(38, 39)
