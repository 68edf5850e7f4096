"""Images in programs: messages, forks, joins, rollbacks and select, over a runtime's connection and over HTTP."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import ramiform as rf
from ramiform.lang.expressions.image_files import image_file, thumbnail
from ramiform.lang.tracing.trace import Trace, load
from ramiform.runtime.programs.records.events import Event, ShownImage, TracedState
from ramiform.tests.operations.scrape import scrape

from .checkpoint import Made, judged, picture
from .served import make_chat_checkpoint, png, serve

A, B = picture(1), picture(2, 70, 30)
NUM_NEW = 6
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": NUM_NEW, "ignore_eos": True}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_chat_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def runtime(made: Made) -> Iterator[rf.Runtime]:
    with serve(made, limit_mm_per_prompt="image=2") as runtime:
        yield runtime


def said(made: Made, images: list[Any], *texts: str) -> str:
    """Return what the judge says after a prompt of texts, with an image after each but the last."""
    from .checkpoint import prompt

    parts = [part for text, image in zip(texts, [*images, None], strict=True) for part in (text, image) if part]
    tokens, _ = prompt(made, *parts)
    text: str = made.tokenizer.decode(judged(made, tokens, images, NUM_NEW)[0])
    return text


@pytest.fixture(scope="module")
def client(runtime: rf.Runtime) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=str(runtime.url), timeout=120) as made:
        yield made


@rf.function
def ask(s: rf.ProgramState, image: Any, question: str) -> None:
    s += rf.user(rf.image(image) + question)
    s += rf.assistant(rf.gen("answer", **GREEDY))


def test_a_program_says_what_the_judge_says(runtime: rf.Runtime, made: Made, tmp_path: Path) -> None:
    expected = said(made, [A], "User: ", "What is it?\nAssistant: ")
    (path := tmp_path / "a.png").write_bytes(png(A))
    for source in (path, str(path), png(A), A, np.asarray(A)):
        assert ask.run(source, "What is it?", backend=runtime)["answer"] == expected


def test_plans_traces_and_notebooks_show_an_image(runtime: rf.Runtime, client: httpx.Client, tmp_path: Path) -> None:
    wide = picture(23, 400, 100)
    file = image_file(wide)
    label = f"image of {len(file)} bytes"
    assert label in str(ask.plan(image=wide))
    state = ask.run(wide, "What is it?", backend=runtime, trace=True)
    assert state.text().startswith("User: <image>What is it?\nAssistant: ")
    named = f"{label}, SHA-256 {hashlib.sha256(file).hexdigest()[:12]}"
    assert named in str(state.trace)
    state.trace.save(tmp_path / "trace.json")
    for html in (state._repr_html_(), state.trace._repr_html_(), load(tmp_path / "trace.json")[0]._repr_html_()):
        [(url, title)] = re.findall(r'<img src="data:image/jpeg;base64,([^"]+)" alt="([^"]+)"', html)
        assert title == named
        assert "&lt;image&gt;" not in html
        with Image.open(BytesIO(base64.b64decode(url))) as small:
            assert small.size == (160, 40)
            colours = np.asarray(small, np.float32).mean((0, 1)), np.asarray(wide, np.float32).mean((0, 1))
            assert np.abs(colours[0] - colours[1]).max() < 3
    newest = client.get("/v1/ramiform/programs").json()["programs"][0]["id"]
    [recorded] = client.get(f"/v1/ramiform/programs/{newest}").json()["states"]
    [event] = [event for event in recorded["events"] if event["image"]]
    assert (event["label"], event["text"]) == (label, "<image>")
    assert event["image"] == {"digest": named[-12:], "url": None}


def test_a_view_of_an_image_is_a_data_url_or_none() -> None:
    assert thumbnail(png(picture(1), "BMP")) is None
    assert thumbnail(png(picture(1))[:-60]) is None
    elsewhere = TracedState(
        number=0,
        parent=None,
        events=[Event(kind="text", label="image", place="", text="<", image=ShownImage("12", "http://a.b/c.png"))],
    )
    html = Trace(title="a", began_at=0.0, states=[elsewhere])._repr_html_()
    assert "<img" not in html
    assert "image, SHA-256 12" in html


def test_a_program_over_http_says_the_same(runtime: rf.Runtime) -> None:
    expected = ask.run(A, "What is it?", backend=runtime)["answer"]
    with closing(rf.HttpRuntime(str(runtime.url))) as remote:
        assert ask.run(A, "What is it?", backend=remote)["answer"] == expected


@pytest.mark.exhaustive
def test_processes_that_share_a_model_get_features_from_the_first(made: Made) -> None:
    with serve(made, tp=2) as runtime, httpx.Client(base_url=str(runtime.url), timeout=120) as client:
        for image in (A, B, A):
            state = ask.run(image, "What is it?", backend=runtime)
            assert state["answer"] == said(made, [image], "User: ", "What is it?\nAssistant: ")
        assert scrape(client)("ramiform_tower_seconds_count") == 2


@rf.function
def four(s: rf.ProgramState, image: Any, questions: list[str]) -> None:
    s += "See " + rf.image(image)
    for branch, question in zip(s.fork(len(questions)), questions, strict=True):
        branch += question + rf.gen("answer", **GREEDY)
        s[question] = branch


def test_four_questions_share_one_image(runtime: rf.Runtime, made: Made, client: httpx.Client) -> None:
    image, questions = picture(21), ["What?", "Where is it?", "How many are there?", "Why?"]
    before = scrape(client)
    state = four.run(image, questions, backend=runtime)
    assert scrape(client).since(before)("ramiform_tower_seconds_count") == 1
    for question in questions:
        assert state[question]["answer"] == said(made, [image], "See ", question)
    tokens = [state[question].get_meta_info("answer") for question in questions]
    own = [len(made.tokenizer.encode(question).ids) for question in questions]
    # One branch computes the image, the others only their questions and the rest of a page.
    computed = sorted(meta["prompt_tokens"] - meta["cached_tokens"] for meta in tokens)
    assert sum(computed[:-1]) <= sum(own) + 3 * 16


def test_four_questions_over_http_share_one_image(runtime: rf.Runtime, client: httpx.Client) -> None:
    image, questions = picture(22), ["What?", "Where is it?", "How many are there?", "Why?"]
    before = scrape(client)
    with closing(rf.HttpRuntime(str(runtime.url))) as remote:
        four.run(image, questions, backend=remote)[questions[0]]
    assert scrape(client).since(before)("ramiform_tower_seconds_count") == 1


@rf.function
def joined(s: rf.ProgramState, image: Any) -> None:
    s += "See "
    forks = s.fork(1)
    forks[0] += rf.image(image) + "this"
    forks.join("concate_and_append")
    s += " and say" + rf.gen("answer", **GREEDY)


def test_a_branch_with_an_image_is_joined(runtime: rf.Runtime, made: Made) -> None:
    assert joined.run(A, backend=runtime)["answer"] == said(made, [A], "See ", "this and say")


@rf.function
def choose(s: rf.ProgramState, image: Any, method: Any) -> None:
    s += "See " + rf.image(image) + "It is "
    s += rf.select("kind", ["a cat", "a dog or a horse"], choices_method=method)


def test_a_select_scores_choices_after_an_image(runtime: rf.Runtime) -> None:
    for method in (rf.token_length_normalized, rf.unconditional_likelihood_normalized):
        metas = [choose.run(image, method, backend=runtime).get_meta_info("kind") for image in (A, B)]
        assert metas[0]["normalized_prompt_logprobs"] != metas[1]["normalized_prompt_logprobs"]


def seventh(digit: str) -> None:
    if int(digit) % 7:
        raise ValueError(f"{digit} is no multiple of 7")


@rf.function
def retried(s: rf.ProgramState, image: Any) -> None:
    s += "See " + rf.image(image) + "Of:"
    s += rf.gen("digit", regex="[0-9]", check=seventh, retries=100, temperature=1.0)
    s += rf.image(image) + rf.gen("answer", **GREEDY)


def test_attempts_are_removed_and_the_image_before_them_stays(runtime: rf.Runtime, made: Made) -> None:
    state = retried.run(A, backend=runtime)
    assert state["digit"] in ("0", "7")
    assert state["answer"] == said(made, [A, A], "See ", f"Of:{state['digit']}", "")


@rf.function
def three(s: rf.ProgramState) -> None:
    s += "See " + rf.image(A) + rf.image(B) + rf.image(A) + rf.gen("answer", **GREEDY)


def test_bounds_hold_in_programs(runtime: rf.Runtime) -> None:
    with pytest.raises(rf.RequestError, match="3 images, the most are 2"):
        three.run(backend=runtime)["answer"]
    with pytest.raises(rf.RequestError, match="image: it is no image in a format"):
        ask.run(b"no image", "What?", backend=runtime)["answer"]


def test_a_model_of_texts_on_other_services_refuses_images() -> None:
    with pytest.raises(rf.RequestError, match="an image needs a runtime"):
        ask.run(A, "What?", backend=rf.Scripted(["a"]))["answer"]
