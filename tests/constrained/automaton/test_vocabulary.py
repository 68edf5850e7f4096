"""The index of a vocabulary, compared with obvious constructions from the tokens' bytes."""

from __future__ import annotations

import codecs
import json
import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.constrained import JsonSchema, Vocabulary, compile_constraint
from ramiform.constrained.automaton.duplicate_names import NamesInTokens, used_names
from ramiform.constrained.automaton.token_trie import TokenTrie
from ramiform.constrained.regex.dfa import KIND
from ramiform.tests.constrained.walks import allowed

# Words, quotes, escapes, control characters, NUL, whole and incomplete characters, bytes that are no UTF-8.
PIECES = [
    *(b"a", b"ab", b"abc", b"b", b" ", b"\x7f", b'"', b'"a"', b'":', b"\\", b'\\"', b"\\u0061", b"\n", b"\x00"),
    *("é".encode(), b"\xc3", b"\xe2\x82\xac", b"\xe2\x82", b"\xe0\xa0", b"\xe0\x80", b"\xed\x9f", b"\xed\xa0", b"\x82"),
    *("🙂".encode(), b"\xf0\x9f", b"\xf0\x90\x80", b"\xf0\x80", b"\xf4\x8f", b"\xf4\x90", b"\xf5", b"\xc0\xaf"),
]
TOKENS = st.lists(st.sampled_from(PIECES), max_size=5).map(b"".join) | st.binary(max_size=6)
VOCABULARIES = st.lists(TOKENS | st.none(), max_size=40)


def naive_trie(words: dict[int, bytes]) -> tuple[Any, ...]:
    """Return the arrays of the trie of the words by id: a node for each prefix, after the children of lesser ones."""
    ids = sorted(words, key=lambda number: (words[number], number))
    prefixes = {word[:length] for word in words.values() for length in range(1, len(word) + 1)}
    nodes = [b"", *sorted(prefixes, key=lambda prefix: (prefix[:-1], prefix[-1]))]
    rows = []
    for node in nodes:
        below = [prefix for prefix in nodes if prefix.startswith(node)]
        first = sum(words[number] < node for number in ids)
        own = sum(word == node for word in words.values())
        kinds = 0
        for prefix in below if node else []:
            kinds |= 1 << int(KIND[prefix[-1]])
        height = max(map(len, below)) - len(node) + 1 if node else 0
        before = 1 + sum(prefix[:-1] < node for prefix in nodes[1:])
        children = sum(prefix[:-1] == node for prefix in nodes[1:])
        last = first + sum(word.startswith(node) for word in words.values())
        rows.append([before, before + children, first, first + own, last, kinds, height, 0])
    return bytes(node[-1] if node else 0 for node in nodes), rows, ids, max(map(len, nodes))


def arrays(trie: TokenTrie) -> tuple[Any, ...]:
    nodes = trie.nodes.tolist()
    nodes[0][5] = nodes[0][6] = 0  # nothing enters the root: no walk reads them
    return trie.data.tobytes(), nodes, trie.tokens.tolist(), trie.max_depth


def plain_prefix(data: bytes) -> tuple[int, bool]:
    """Return where the first text ends that is not plain, and whether a part of a plain character follows there."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    begin = 0
    for end in range(1, len(data) + 1):
        try:
            character = decoder.decode(data[end - 1 : end])
        except UnicodeDecodeError:
            return begin, False
        if character:
            if character < " " or character in '"\\':
                return begin, False
            begin = end
    return begin, begin < len(data)


@pytest.mark.slow
@given(VOCABULARIES, st.booleans())
def test_the_index_of_a_vocabulary_is_that_of_an_obvious_construction(
    tokens: list[bytes | None], with_end: bool
) -> None:
    ends = [len(tokens)] if with_end else []
    vocabulary = Vocabulary.from_tokens([*tokens, b"</s>"] if with_end else tokens, ends)
    words = {number: data for number, data in enumerate(tokens) if data}
    assert vocabulary.tokens == (*(data or None for data in tokens), *[None] * with_end)

    text, starts = vocabulary.packed
    assert [text[a:b].tobytes() for a, b in pairwise(starts)] == [data or b"" for data in vocabulary.tokens]

    found = {number: plain_prefix(data) for number, data in words.items()}
    plain = [number for number, (end, incomplete) in found.items() if end == len(words[number]) or incomplete]
    counts = [len(words[number][: found[number][0]].decode()) + found[number][1] for number in plain]
    others = [n for n, (end, more) in found.items() if not more and words[n][end : end + 1] in (b'"', b"\\")]
    assert vocabulary.plain.tokens.tolist() == plain
    assert vocabulary.plain.num_characters.tolist() == counts
    assert vocabulary.plain.longest == max(counts, default=0)

    assert arrays(vocabulary.trie) == naive_trie(words)
    assert arrays(vocabulary.plain.others) == naive_trie({number: words[number] for number in others})
    tails = {number: words[number][found[number][0] :] for number in others}
    assert arrays(vocabulary.plain.tails) == naive_trie(tails)
    assert vocabulary.used_bytes == {byte for word in words.values() for byte in word}
    assert vocabulary.single_bytes == {word[0] for word in words.values() if len(word) == 1}


@pytest.mark.slow
@given(VOCABULARIES, TOKENS)
def test_tokens_are_found_by_their_beginning(tokens: list[bytes | None], text: bytes) -> None:
    found = Vocabulary.from_tokens(tokens, []).quoted.beginning_with(text)
    expected = [(data, number) for number, data in enumerate(tokens) if data and data.startswith(text)]
    assert found == [number for _, number in sorted(expected)]


NAMES = st.text('ab:{}[]"\\\\\n/é\ud800', max_size=4)
VALUES = st.recursive(
    st.none() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(NAMES, VALUES, max_size=70), st.booleans(), st.integers(0, 70))
def test_the_names_of_an_object_are_read_from_its_text(members: dict[str, Any], escaped: bool, num_known: int) -> None:
    def text_of(some: dict[str, Any]) -> bytes:
        text = json.dumps(some, ensure_ascii=escaped, separators=(", ", " : "))
        return text[:-1].encode("utf-8", "surrogatepass") + (b', "' if some else b'"')

    first = dict(list(members.items())[:num_known])
    for some in (first, members):  # the second is read on from the end of the first
        assert used_names(text_of(some)).names == some.keys()


def test_tokens_that_hold_a_name_in_quotes_are_found_in_an_output() -> None:
    tokens: list[bytes | None] = [b"a", b'"a"', b',"a":"b"', b'"b', None, b'x"\\u0061":', b'""']
    quoted = Vocabulary.from_tokens(tokens, []).quoted
    names = NamesInTokens()
    quoted.read(bytearray(b'{"a":1,"b":2,"":3,'), names)
    assert names.tokens == {1, 2, 5, 6}


@pytest.mark.parametrize("before", [b"", b'{"b":1', b'{"b":[{}'])
def test_a_token_that_repeats_a_name_within_itself_is_not_allowed(before: bytes) -> None:
    repeating = [b'{"a":1,"a":1', b'{"a":1,"a"', b',"a":1, "\\u0061"']
    others = [b',"a" :"a"', b'{"a":1,"b":1', b'{"a":1},{"a":1', b',"a":"a","c']
    words = [*(bytes([byte]) for byte in range(256)), *repeating, *others]
    vocabulary = Vocabulary.from_tokens([*words, None], [len(words)])
    matcher = compile_constraint(JsonSchema({}), vocabulary, whitespace="any").matcher()
    assert all(matcher.accept(byte) for byte in before)
    may_come = allowed(matcher, vocabulary)
    for token in range(len(words)):
        accepted = matcher.accept(token)
        matcher.rollback(int(accepted))
        assert accepted == (token in may_come), words[token]


def test_a_vocabulary_is_held_in_arrays_and_not_in_objects() -> None:
    """Also while it is built: a server's memory grows to the most that it ever needed."""
    tokens = [f"{number * 2654435761 % (1 << 32):x}".encode() for number in range(1 << 14)]
    Vocabulary.from_tokens(tokens[:9], [])
    tracemalloc.start()
    try:
        vocabulary = Vocabulary.from_tokens(tokens, [])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    num_nodes, num_bytes = len(vocabulary.trie.data), sum(map(len, tokens))
    assert held < 33 * num_nodes + 40 * len(tokens) + 2 * num_bytes + 10_000
    assert peak < held + 70 * num_nodes + 20 * len(tokens)
