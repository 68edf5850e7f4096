"""Streaming detokenisation. Judge: decoding the whole output, for any arrival of ids and any stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import Scan, Search, search
from ramiform.runtime.protocol.stop_strings import StopStrings
from ramiform.runtime.tokenizer import Detokenizer, Tokenizer, cut

PATTERNS = st.lists(st.sampled_from(["E[A-Z]+D?", "[東🙂é]{2,}", "a.*b", r"\w \w", "[^a]{5}"]), max_size=2).map(
    lambda patterns: search(tuple(patterns))
)
STOPS = st.lists(st.sampled_from(["END", "EN", " EOF", "東京", "é", "\n\n", "a", "aab", "🙂"]), max_size=3)
TEXTS = st.lists(
    st.sampled_from(["E", "END", "EN", "the ", "東", "京", "東京", "🙂", "é", "a", "aa", "b", "\n", "\n\n", " EOF"])
    | st.characters(exclude_categories=["Cs"]),
    max_size=20,
).map("".join)


def any_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Draw ids of texts, and arbitrary ids: broken characters, special tokens."""
    wild = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12)
    return wild | TEXTS.map(lambda text: tokenizer.encode(text, continues=True))


def matched_stop(
    tokenizer: Tokenizer, ids: Sequence[int], stops: Sequence[str], patterns: Scan, shown: bool
) -> tuple[int, str] | None:
    """Return the end of the output as the scheduler finds it: the number of ids, and the matched text."""
    strings = StopStrings(stops)
    special = set(tokenizer.special_ids.values())
    for number, token in enumerate(ids, start=1):
        if token in special and shown:
            strings.reset()
            patterns.reset()
            continue
        data = tokenizer.token_bytes[token] or b""
        if found := [match for match in (strings.feed(data), patterns.feed(data)) if match is not None]:
            return number, min(found).text.decode()
    return None


@pytest.mark.slow
@given(data=st.data(), stops=STOPS, patterns=PATTERNS, skip=st.booleans())
def test_the_stream_is_the_decoded_text_whatever_the_steps(
    tokenizer: Tokenizer, data: st.DataObject, stops: list[str], patterns: Search, skip: bool
) -> None:
    ids = data.draw(any_ids(tokenizer))
    detokenizer = Detokenizer(tokenizer, stops, patterns.scan(), skip_special_tokens=skip)
    parts, start = [], 0
    while start < len(ids):
        end = data.draw(st.integers(start + 1, len(ids)))
        parts.append(detokenizer.add(ids[start:end]))
        start = end
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    sent = "".join(parts)
    assert whole.startswith(sent)
    assert sent + detokenizer.finish() == whole


@pytest.mark.slow
@given(data=st.data(), stops=STOPS, patterns=PATTERNS, skip=st.booleans())
def test_a_stop_cuts_the_stream_and_none_of_it_was_sent_before(
    tokenizer: Tokenizer, data: st.DataObject, stops: list[str], patterns: Search, skip: bool
) -> None:
    ids = data.draw(any_ids(tokenizer))
    match = matched_stop(tokenizer, ids, stops, patterns.scan(), shown=not skip)
    if match is None:
        return
    number, stop = match
    ids = ids[:number]
    num_last = data.draw(st.integers(1, number))
    detokenizer = Detokenizer(tokenizer, stops, patterns.scan(), skip_special_tokens=skip)
    sent = "".join(detokenizer.add([token]) for token in ids[: number - num_last])
    text = sent + detokenizer.finish(ids[number - num_last :], stop=stop)

    result = cut(tokenizer, ids, stop, skip_special_tokens=skip)
    assert text == result.text
    assert tokenizer.decode(ids, skip_special_tokens=skip).startswith(result.text + stop)
    assert tokenizer.decode(ids[: result.num_whole], skip_special_tokens=skip) + result.leftover == result.text
    assert result.num_whole < number

    kept = cut(tokenizer, ids, stop, skip_special_tokens=skip, keeps_stop=True)
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    sent = "".join(detokenizer.add([token]) for token in ids[: number - num_last])
    assert kept.text == result.text + stop
    assert sent + detokenizer.finish(ids[number - num_last :], num_behind=kept.num_behind) == kept.text
    assert tokenizer.decode(ids[: kept.num_whole], skip_special_tokens=skip) + kept.leftover == kept.text


@pytest.mark.slow
@given(data=st.data(), stops=STOPS, patterns=PATTERNS, skip=st.booleans())
def test_a_stream_that_goes_on_gives_what_was_not_given_before(
    tokenizer: Tokenizer, data: st.DataObject, stops: list[str], patterns: Search, skip: bool
) -> None:
    ids = data.draw(any_ids(tokenizer))
    match = matched_stop(tokenizer, ids, stops, patterns.scan(), shown=not skip)
    num, stop = (len(ids), None) if match is None else match
    after = data.draw(st.integers(0, max(0, num - 1)))
    given_before = Detokenizer(tokenizer, skip_special_tokens=skip).add(ids[:after])  # whole characters
    detokenizer = Detokenizer(tokenizer, stops, patterns.scan(), skip_special_tokens=skip)
    detokenizer.skip(ids[:after])
    num_last = data.draw(st.integers(min(1, num - after), num - after))
    text = "".join(detokenizer.add([token]) for token in ids[after : num - num_last])
    text += detokenizer.finish(ids[num - num_last : num], stop=stop)
    whole = tokenizer.decode(ids[:num], skip_special_tokens=skip)
    if stop is not None:
        whole = cut(tokenizer, ids[:num], stop, skip_special_tokens=skip).text
    assert text == whole[len(given_before) :]


@pytest.mark.slow
@given(data=st.data())
def test_no_part_of_a_character_is_sent(tokenizer: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    detokenizer = Detokenizer(tokenizer)
    assert "\ufffd" not in "".join(detokenizer.add([token]) for token in tokenizer.encode(text, continues=True)) or (
        "\ufffd" in text
    )


def test_text_without_stops_is_sent_at_once(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.encode("hello world 123", continues=True):
        assert detokenizer.add([token]) == tokenizer.decode([token])


def test_a_stop_string_that_did_not_end_the_output_is_sent(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["END"])
    ids = tokenizer.encode("an END, and more", continues=True)
    assert detokenizer.add(ids) == "an END, and more"


def test_a_missing_stop_string_is_an_assertion_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(AssertionError, match="stop string"):
        cut(tokenizer, tokenizer.encode("hello"), "END")
