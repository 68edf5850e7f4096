"""Notebooks show states and traces as HTML that is well-formed, complete, escaped, and there without waiting."""

from __future__ import annotations

import threading
from html.parser import HTMLParser
from typing import Any

import pytest

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen, select
from ramiform.lang.tracing.text_flow import TextFlow, TextPiece
from ramiform.runtime.programs.records.events import Event, TokenCounts

VOID = {"br", "hr", "img", "input", "meta", "link"}


class Page(HTMLParser):
    """Checks that tags are nested and closed; collects the text and the tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in VOID
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.tags)


def html_of(shown: Any) -> Page:
    return Page(shown._repr_html_())


@ramiform.function
def planner(s: ProgramState, task: str) -> Any:
    s += ramiform.user(task)
    s += ramiform.assistant(gen("plan", max_tokens=6, temperature=0, ignore_eos=True))
    branches = s.fork(2)
    branches += lambda index: f"Step {index}: " + gen("step", regex="[ab]{3} is the whole step", seed=index)
    branches.join("concate_and_append")
    s += " Done? " + select("done", ["yes", "no"])
    return branches


def test_a_state_shows_all_its_text_and_its_branches(backend: ramiform.Runtime) -> None:
    state = planner.run("<b>Bake</b> & eat $x$ 'bread' \"now\"", trace=True)
    page = html_of(state)
    for segment in state.segments():
        assert segment.text.strip() in page.text
    for branch in state.ret_value:
        assert branch["step"] in page.text
        assert branch["step"] in html_of(branch).text
        assert state["plan"] in html_of(branch).text, "its beginning"
    steps = [event.tokens for event in state.trace.events if event.name == "step" and event.tokens is not None]
    assert all(0 < tokens.forced < tokens.completion for tokens in steps)
    assert all(f"{tokens.forced} of {tokens.completion} forced" in page.text for tokens in steps)
    assert page.text.count("branch ") == 2
    assert page.count("script") == 0
    assert not any(name in ("src", "href") for _, attrs in page.tags for name in attrs)


def test_a_trace_shows_the_text_and_a_timeline(backend: ramiform.Runtime) -> None:
    state = planner.run("Bake", trace=True)
    page = html_of(state.trace)
    for text in [state["plan"], *state.trace.variables["step"]]:
        assert text in page.text
    titles = [attrs.get("title") or "" for _, attrs in page.tags]
    assert any(title.startswith("decode ") for title in titles)
    assert any("prefill" in title and "test_notebook.py:" in title for title in titles)
    assert html_of(state).text.count("branch ") == 2


def test_a_group_shows_its_branches_side_by_side(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        s += "x"
        group = s.fork(3)
        group += lambda index: f" branch number {index}"
        group.join()
        return group

    group = body.run().ret_value
    for branch in group:
        branch.text()  # waits: a page shows what is answered
    page = html_of(group)
    for index in range(3):
        assert f" branch number {index}" in page.text


def test_text_of_a_prompt_is_never_markup() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'`&lt;\ud800"

    @ramiform.function
    def body(s: ProgramState) -> None:
        s += evil + gen(evil) + select("y", [evil, "b"])
        s["z"] = evil

    state = body.run(backend=Scripted([evil, 0]), trace=True)
    for shown in (state, state.trace):
        page = html_of(shown)
        assert page.count("script") == page.count("img") == 0
        assert page.text.count("<script>") >= 2


def test_a_state_is_shown_while_it_runs_without_waiting() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def answer(prompt: str) -> str:
        begun.set()
        assert go_on.wait(60)
        return "tardy"

    @ramiform.function
    def body(s: ProgramState) -> None:
        s["early"] = [1]
        s += "Before. " + gen("x") + " After."

    with_script = Scripted(answer)
    state = body.run(backend=with_script, stream=True)
    try:
        assert begun.wait(60)
        assert state.variables() == {"early": [1]}
        assert state._ipython_key_completions_() == ["early", "x"]
        assert "Before. " in html_of(state).text
        assert "tardy" not in html_of(state).text
    finally:
        go_on.set()
    assert state.text() == "Before. tardy After."
    assert state.variables() == {"early": [1], "x": "tardy"}
    assert "tardy" in html_of(state).text
    with_script.close()


def test_a_failed_state_shows_its_error_and_leaves_the_failed_variable_out() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "a" + gen("x") + gen("y")
        s.error()

    state = body.run(backend=Scripted(["1", RequestError("no <good>")]))
    assert "no <good>" in html_of(state).text
    assert state.variables() == {"x": "1"}


def test_a_value_that_is_invalid_or_cannot_be_shown_does_not_raise() -> None:
    class Unshowable:
        def __repr__(self) -> str:
            raise ValueError("nothing to see")

    states: list[ProgramState] = []

    @ramiform.function
    def broken(s: ProgramState) -> None:
        states.append(s)
        s["value"] = Unshowable()
        s += gen("number", dtype=int)

    with pytest.raises(RequestError):
        broken.run(backend=Scripted(["no number"]))
    assert "number" not in states[0].variables()
    assert "nothing to see" in html_of(states[0]).text


def test_text_is_cached_up_to_where_the_counts_say() -> None:
    def generated(prompt: int, cached: int) -> Event:
        tokens = TokenCounts(prompt, cached, 5)
        return Event(kind="gen", label="gen", place="f.py:1", text="g" * 5, tokens=tokens)

    flow = TextFlow()
    flow.add(Event(kind="text", label="", place="f.py:1", text="a" * 40))
    flow.add(Event(kind="text", label="", place="f.py:1", text="b" * 40))
    flow.add(generated(20, 15))
    flow.add(Event(kind="text", label="", place="f.py:1", text="c" * 10))
    branch = flow.branch()
    branch.add(Event(kind="text", label="", place="f.py:1", text="d" * 10))
    branch.add(generated(35, 33))
    flow.add(generated(30, 25))

    def pieces(shown: TextFlow) -> list[tuple[str, str]]:
        return [(piece.origin, piece.text) for piece in shown.pieces if isinstance(piece, TextPiece)]

    assert pieces(flow) == [
        ("cached", "a" * 40),
        ("cached", "b" * 20),
        ("program", "b" * 20),
        ("generated", "ggggg"),
        ("program", "c" * 10),
        ("generated", "ggggg"),
    ]
    assert pieces(branch) == [("cached", "d" * 6), ("program", "d" * 4), ("generated", "ggggg")]


def test_deep_and_wide_forks_are_shown_in_bounded_space() -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        kept = []
        for _ in range(60):
            group = s.fork(4)
            group += "x"
            kept.append(group)
            s = group[0]
        return kept

    state = body.run(backend=Scripted([]))
    assert len(state._repr_html_()) < 200_000
    assert "not shown" in html_of(state).text
