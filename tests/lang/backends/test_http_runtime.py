"""Programs on a real runtime's HTTP routes: judged by the same programs over ZMQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import ramiform
from ramiform import HttpRuntime, ProgramState, RequestError, RuntimeFailed, assistant, gen, select, user
from ramiform.lang.backend import get_server_info
from ramiform.lang.backends.model import ModelCall

ROLES = {"user": ("<|user|>\n", "\n"), "assistant": ("<|assistant|>\n", "\n")}


@pytest.fixture
def over_http(url: str) -> Iterator[HttpRuntime]:
    backend = HttpRuntime(url)
    yield backend
    backend.close()


@ramiform.function
def qa(s: ProgramState, country: str) -> None:
    s += f"Question: What is the capital of {country}?\nAnswer:" + gen("answer", max_tokens=12, stop=[".", "\n"])
    s += "\nSure?" + select("sure", [" yes", " no", " yesterday"])
    branches = s.fork(2)
    branches += lambda index: f"\nReason {index}:" + gen("reason", max_tokens=6, ignore_eos=True)
    branches.join("concate_and_append")
    s += "\nDigits: " + gen("digits", regex="[0-9]{3}") + gen("number", dtype=int, max_tokens=8)
    s += select("method", [" a b", " the"], choices_method=ramiform.unconditional_likelihood_normalized) + select(
        "greedy", [" an apple", " a"], choices_method=ramiform.greedy_token_selection
    )


NAMES = ("answer", "sure", "digits", "number", "method", "greedy")


@pytest.mark.parametrize("country", ["France", "Peru"])
def test_it_gives_what_zmq_gives(backend: ramiform.Runtime, over_http: HttpRuntime, country: str) -> None:
    here = qa.run(country, temperature=0)
    there = qa.run(country, temperature=0, backend=over_http)
    assert there.text() == here.text()
    assert [there[name] for name in NAMES] == [here[name] for name in NAMES]
    for name in ("answer", "digits"):
        ours, theirs = there.get_meta_info(name), here.get_meta_info(name)
        for key in ("output_ids", "prompt_tokens", "completion_tokens", "finish_reason"):
            assert ours[key] == theirs[key], (name, key)
        for meta in (ours, theirs):
            phases = [meta[f"{phase}_time"] for phase in ("queue", "prefill", "decode")]
            assert min(phases) >= 0
            assert 0 < sum(phases) <= meta["e2e_latency"]
    for name in ("sure", "method", "greedy"):
        ours, theirs = there.get_meta_info(name), here.get_meta_info(name)
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=1e-3)
        assert [[id for _, id, _ in part] for part in ours["input_token_logprobs"]] == [
            [id for _, id, _ in part] for part in theirs["input_token_logprobs"]
        ]


@pytest.mark.parametrize("ends", [{"stop": " a"}, {"stop_regex": ["[ao][^ao]+[ao]", "zz"]}], ids=str)
def test_the_tokens_of_a_state_are_those_that_were_generated(
    backend: ramiform.Runtime, over_http: HttpRuntime, ends: dict[str, Any]
) -> None:
    @ramiform.function
    def twice(s: ProgramState) -> None:
        s += "Ada lives near a river" + gen("x", max_tokens=9, temperature=1.0, seed=4, **ends)
        s += gen("y", max_tokens=2, temperature=0)

    ours, theirs = (twice.run(backend=each) for each in (over_http, backend))
    assert ours.text() == theirs.text()
    assert ours.get_meta_info("x")["finish_reason"] == theirs.get_meta_info("x")["finish_reason"]
    assert ours.get_meta_info("y")["prompt_tokens"] == theirs.get_meta_info("y")["prompt_tokens"]
    assert ours.get_meta_info("y")["cached_tokens"] > 0


def test_streams_samples_and_logprobs(backend: ramiform.Runtime, over_http: HttpRuntime) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "One, two," + gen(
            "x", max_tokens=6, temperature=0, return_logprob=True, top_logprobs_num=2, return_text_in_logprobs=True
        )

    streamed = body.run(stream=True, backend=over_http)
    assert "".join(streamed.text_iter("x")) == body.run()["x"]
    ours, theirs = body.run(backend=over_http).get_meta_info("x"), body.run().get_meta_info("x")
    for (a, i, text), (b, j, other) in zip(ours["output_token_logprobs"], theirs["output_token_logprobs"], strict=True):
        assert (i, text) == (j, other)
        assert a == pytest.approx(b, abs=1e-3)
    assert [[i for _, i, _ in top] for top in ours["output_top_logprobs"]] == [
        [i for _, i, _ in top] for top in theirs["output_top_logprobs"]
    ]

    @ramiform.function
    def many(s: ProgramState) -> None:
        s += "Once" + gen("x", n=3, max_tokens=4, seed=1)

    assert many.run(backend=over_http)["x"] == many.run()["x"]


def test_roles_need_their_texts(backend: ramiform.Runtime, url: str, over_http: HttpRuntime) -> None:
    @ramiform.function
    def chat(s: ProgramState) -> None:
        s += user("Hi") + assistant(gen("x", max_tokens=4, temperature=0))

    with pytest.raises(RequestError, match=r"roles=.*'user'"):
        chat.run(backend=over_http)
    with_roles = HttpRuntime(url, roles=ROLES)
    state = chat.run(backend=with_roles)
    assert state.text().startswith("<|user|>\nHi\n<|assistant|>\n")
    assert state.messages()[0] == {"role": "user", "content": "Hi"}
    with_roles.close()


def test_facts_counters_and_the_cache(backend: ramiform.Runtime, over_http: HttpRuntime) -> None:
    assert get_server_info(over_http).keys() == get_server_info(backend).keys()
    assert get_server_info(over_http)["name"] == get_server_info(backend)["name"]
    ramiform.flush_cache(over_http)
    assert get_server_info(backend)["num_cached_pages"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [({"regex": "("}, "regex"), ({"grammar": "root ::= ("}, "grammar")],
)
def test_what_the_runtime_refuses_names_the_programs_line(
    over_http: HttpRuntime, options: dict[str, Any], message: str
) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "x" + gen("x", **options)

    with pytest.raises(RequestError, match=f"(?s)test_http_runtime.py:.*{message}"):
        body.run(backend=over_http)


def test_decisions_are_refused(over_http: HttpRuntime) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "x"
        s.decide(sure="Sure?")

    with pytest.raises(RequestError, match="answer no decisions"):
        body.run(backend=over_http)


def test_a_cancelled_program_ends_in_the_runtime(backend: ramiform.Runtime, over_http: HttpRuntime) -> None:
    @ramiform.function
    def long(s: ProgramState) -> None:
        branches = s.fork(16)  # so that it takes many seconds, also for a client that stands still for some
        branches += "Once" + gen("x", max_tokens=1900, ignore_eos=True)
        branches.join()

    with pytest.raises(RequestError, match="did not end within"):
        long.run(backend=over_http, timeout=0.1)
    while (load := get_server_info(backend))["num_running"] or load["num_waiting"]:
        pass  # the test's own timeout ends this


def test_where_nothing_listens_a_program_fails() -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "x" + gen("x")

    backend = HttpRuntime("http://127.0.0.1:9")
    with pytest.raises(RuntimeFailed, match=r"test_http_runtime.py:.*nothing listens"):
        body.run(backend=backend)
    backend.close()
    with pytest.raises(RequestError, match="not an HTTP address"):
        HttpRuntime("ipc:///tmp/x")


def test_what_another_call_makes_it_forget_meanwhile_is_still_known(
    over_http: HttpRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many texts are remembered, and calls have threads of their own."""
    monkeypatch.setattr("ramiform.lang.backends.http_runtime.MAX_CACHED_TEXTS", 1)
    post = over_http._http.post

    def post_while_another_asks(path: str, body: Any, call: ModelCall) -> Any:
        monkeypatch.setattr(over_http._http, "post", post)
        over_http._tokenize(["another"], True, call)
        return post(path, body, call)

    [first] = over_http._tokenize(["one"], True, ModelCall())
    monkeypatch.setattr(over_http._http, "post", post_while_another_asks)
    assert over_http._tokenize(["one", "two"], True, ModelCall())[0] == first
