"""Characters as bytes, judged by Python's own codecs over the whole of Unicode's seams."""

from __future__ import annotations

import itertools
import json

from hypothesis import example, given
from hypothesis import strategies as st

from ramify.constrained.charset import CharSet, charset, complement, difference, intersection
from ramify.constrained.encodings import END, Branch, json_string, utf8

SEAMS = [
    0,
    0x1F,
    0x20,
    0x22,
    0x2F,
    0x5C,
    0x7E,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0x1000,
    0xD7FF,
    0xE000,
    0xFFFF,
    0x10000,
]
SEAMS += [0x103FF, 0x10400, 0x1F642, 0xFFFFF, 0x100000, 0x10FFFF]
CODES = st.sampled_from(SEAMS) | st.integers(0, 0x10FFFF)
SETS = st.lists(st.tuples(CODES, CODES).map(lambda pair: (min(pair), max(pair))), max_size=4).map(charset)


def accepts(branch: Branch, data: bytes) -> bool:
    for byte in data:
        branch = next((after for first, last, after in branch.edges if first <= byte <= last), Branch(()))
    return branch is END


def holds(ranges: CharSet, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


@given(ranges=SETS, code=CODES)
@example(ranges=((0, 0x10FFFF),), code=0xE000)
@example(ranges=((0x10000, 0x10001), (0x10003, 0x10400)), code=0x10002)
def test_exactly_the_sets_characters_are_encoded(ranges: CharSet, code: int) -> None:
    expected = holds(ranges, code)
    if 0xD800 <= code <= 0xDFFF:
        assert not accepts(utf8(ranges), chr(code).encode("utf-8", "surrogatepass"))
        assert not accepts(json_string(ranges), f"\\u{code:04x}".encode())
        return
    assert accepts(utf8(ranges), chr(code).encode()) == expected
    for text in {json.dumps(chr(code)), json.dumps(chr(code), ensure_ascii=False)}:
        assert accepts(json_string(ranges), text[1:-1].encode()) == expected, text
        escaped = text[1:-1].replace("\\u", "/").upper().replace("/", "\\u") if len(text) > 4 else text[1:-1]
        assert accepts(json_string(ranges), escaped.encode()) == expected, escaped


@given(a=SETS, b=SETS, code=CODES)
def test_sets_are_sets(a: CharSet, b: CharSet, code: int) -> None:
    assert holds(complement(a), code) != holds(a, code)
    assert holds(intersection(a, b), code) == (holds(a, code) and holds(b, code))
    assert holds(difference(a, b), code) == (holds(a, code) and not holds(b, code))
    assert holds(charset(a + b), code) == (holds(a, code) or holds(b, code))


@given(ranges=SETS)
def test_no_byte_leads_two_ways(ranges: CharSet) -> None:
    todo = [utf8(ranges), json_string(ranges)]
    seen = set()
    while todo:
        branch = todo.pop()
        if branch in seen:
            continue
        seen.add(branch)
        edges = sorted(branch.edges, key=lambda edge: edge[0])
        assert all(a[1] < b[0] for a, b in itertools.pairwise(edges))
        todo += [after for _, _, after in edges]
