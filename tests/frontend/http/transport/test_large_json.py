"""Large JSON documents. Judge: the standard library's reader."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.runtime.frontend.http.transport import large_json
from ramiform.runtime.frontend.http.transport.large_json import MAX_LIST_ENTRIES, MAX_VALUES, read_json
from ramiform.runtime.frontend.text.offload import CancellationToken, WorkCancelledError
from ramiform.runtime.protocol.errors import RequestError

numbers = st.integers() | st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.lists(numbers),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
)
broken = st.text('[]{},:"ab 1-.eE+\\\n', max_size=12)


def read(text: str) -> Any:
    return read_json(text, CancellationToken())


@pytest.mark.exhaustive
@given(values, st.sampled_from([None, 1]))
def test_every_value_is_read_as_the_standard_library_reads_it(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert read(text) == json.loads(text)
    assert json.dumps(read(text)) == json.dumps(json.loads(text))  # 1 is not 1.0


@pytest.mark.exhaustive
@given(broken | values.map(json.dumps).flatmap(lambda text: st.integers(0, len(text)).map(lambda end: text[:end])))
def test_what_is_no_json_is_refused_in_the_same_words(text: str) -> None:
    def outcome(reader: Any) -> str:
        try:
            return repr(reader(text))
        except json.JSONDecodeError as error:
            return f"{error.msg} at {error.pos}"

    assert outcome(read) == outcome(json.loads)


@pytest.mark.parametrize("text", ["[1,]", "[,1]", "[1,,2]", "[,]", "[1 2]", "[-]", "[1", "[1,", "[1,2,3,]", "[ , 1]"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_lists_of_numbers_are_read_alike_wherever_they_are_cut(
    text: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_json, "_SLICE", size)
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(text)
    with pytest.raises(json.JSONDecodeError) as caught:
        read(text)
    assert (caught.value.msg, caught.value.pos) == (expected.value.msg, expected.value.pos)
    whole = "[10, -2.5, 3e2,4 ,\n5, 66, 7]"
    assert read(whole) == json.loads(whole)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "input_ids": [%s7]}' % ("7," * (1 << 20)), "1048576 numbers"),
        ('{"a": [1], "input_ids": [["a"%s]]}' % (',"a"' * MAX_LIST_ENTRIES), f"{MAX_LIST_ENTRIES} entries"),
        ('{"input_ids": {"b": [%s[]]}}' % ("[[], [], [], [], [], [], [], [], []]," * (MAX_VALUES // 10 + 1)), "values"),
    ],
    ids=["numbers", "entries", "values"],
)
def test_a_document_that_holds_too_much_is_refused_by_the_name_of_the_member(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read(text)
    assert caught.value.param == "input_ids"


@pytest.mark.exhaustive
def test_other_threads_go_on_while_a_document_is_read() -> None:
    text = json.dumps({"input_ids": [[7] * 1000] * 2000, "text": ["a"] * 100_000, "x": [{"a": [{}]}] * 30_000})
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.append(read(text)))
    num_turns = 0
    reading.start()
    while reading.is_alive():
        reading.join(0)
        num_turns += 1
    assert num_turns > 10
    assert found == [json.loads(text)]


def test_reading_ends_once_nobody_waits() -> None:
    cancellation = CancellationToken()
    cancellation.cancel()
    for text in (json.dumps([7] * 10), json.dumps({"a": ["b"] * 5000})):
        with pytest.raises(WorkCancelledError):
            read_json(text, cancellation)
