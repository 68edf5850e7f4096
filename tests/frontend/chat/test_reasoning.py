"""Reasoning is split from the answer, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.runtime.frontend.chat.reasoning import (
    REASONING_FORMATS,
    ReasoningMarkers,
    ReasoningParser,
    detect_reasoning_markers,
)
from ramiform.runtime.protocol.config import ReasoningFormatName
from ramiform.runtime.tokenizer.chat_template import ChatTemplate
from ramiform.tests.frontend.harness import shipped_tokenizer

from .test_tools import cut

THINK = REASONING_FORMATS["think"]


def split(pieces: list[str], *, is_open: bool = False, markers: ReasoningMarkers = THINK) -> tuple[str, str]:
    splitter = ReasoningParser(markers, is_open=is_open)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(thought for thought, _ in parts), "".join(answer for _, answer in parts)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nParis.", False, ("Hm.", "Paris.")),
        ("\n<think>Hm.</think>Paris.", False, ("Hm.", "Paris.")),
        ("Hm.\n</think>\n\nParis.", True, ("Hm.", "Paris.")),
        ("Paris. <think>no</think>", False, ("", "Paris. <think>no</think>")),
        (" Paris. ", False, ("", " Paris. ")),
        ("<think>and on", False, ("and on", "")),
        ("<think>\n\n</think>\n\nParis.", False, ("", "Paris.")),
        ("<think>a < b </thin </think>c", False, ("a < b </thin", "c")),
        ("<thi", False, ("", "<thi")),
        ("", False, ("", "")),
        ("", True, ("", "")),
    ],
)
def test_thoughts_are_told_from_answers(text: str, is_open: bool, expected: tuple[str, str]) -> None:
    assert split([text], is_open=is_open) == expected


@given(st.text(alphabet="<think>/ \nab", max_size=60), st.lists(st.integers(0, 99), max_size=8), st.booleans())
def test_pieces_change_nothing(text: str, places: list[int], is_open: bool) -> None:
    assert split(cut(text, places), is_open=is_open) == split([text], is_open=is_open)


def test_models_that_think_are_known_by_their_template() -> None:
    class Told:
        special_ids: dict[str, int] = {}  # noqa: RUF012
        token_bytes: list[bytes] = []  # noqa: RUF012

        def __init__(self, template: str) -> None:
            self.chat = ChatTemplate(template, {})

    def detected(template: str) -> ReasoningMarkers | None:
        return detect_reasoning_markers(Told(template))  # type: ignore[arg-type]

    qwen = "{{ messages[0].content }}{% if enable_thinking is false %}<think>\n\n</think>{% endif %}"
    granite = "{% if thinking %}Think after 'Here is my thought process:', then 'Here is my response:'{% endif %}"
    assert detected(qwen) == THINK
    assert detected("{{ messages[0].content }}<think>\n") == THINK
    assert detected("[SYSTEM]First [THINK]draft[/THINK] then answer.") == REASONING_FORMATS["magistral"]
    assert detected("{{ messages[0].content }}◁think▷") == REASONING_FORMATS["kimi"]
    assert detected("<seed:bos>{{ messages[0].content }}<seed:think>") == REASONING_FORMATS["seed_oss"]
    assert detected(granite) == REASONING_FORMATS["granite"]
    assert detected("{{ messages[0].content }}") is None
    assert detect_reasoning_markers(shipped_tokenizer()) is None


@pytest.mark.parametrize("name", REASONING_FORMATS)
@settings(max_examples=25)
@given(st.text(max_size=30), st.text(max_size=30), st.lists(st.integers(0, 99), max_size=8))
def test_every_format_is_told_from_the_answer_however_it_is_cut(
    name: ReasoningFormatName, thought: str, answer: str, places: list[int]
) -> None:
    markers = REASONING_FORMATS[name]
    text = f"{markers.start}\n{thought}\n{markers.end}\n{answer}"
    parts = split(cut(text, places), markers=markers)
    assert parts == split([text], markers=markers)
    assert parts == (thought.strip(), answer.lstrip())
