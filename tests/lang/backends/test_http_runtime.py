"""Programs on a real runtime over HTTP alone: judged by the same programs over ZMQ."""

from __future__ import annotations

import contextlib
import gc
import http.server
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ramiform
from ramiform import HttpRuntime, ProgramState, RequestError, RuntimeFailed, assistant, gen, pick, select, system, user
from ramiform.lang.backends.backend import get_server_info


@pytest.fixture
def over_http(url: str) -> Iterator[HttpRuntime]:
    backend = HttpRuntime(url)
    yield backend
    backend.close()


@pytest.fixture
def num_requests(over_http: HttpRuntime, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many requests programs have made."""
    posted: list[str] = []
    stream = over_http._http.stream

    def counted(path: str, *rest: Any) -> None:
        posted.append(path)
        stream(path, *rest)

    monkeypatch.setattr(over_http._http, "stream", counted)
    return lambda: len(posted)


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


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def last(**given: Any) -> ramiform.ChoicesDecision:
    return ramiform.ChoicesDecision(given["choices"][-1])


@ramiform.function
def everything(s: ProgramState, question: str) -> None:
    s += system("Answer briefly.") + user(question)
    with s.assistant():
        s += "It is " + gen("answer", max_tokens=10, temperature=1.0, seed=5)
    s.decide(city=pick("Which city?", ["Paris", "Rome"]), sure="Is that sure?")
    s += user("Which?")
    s += assistant(select("own", [" Paris", " Rome"], choices_method=last) + gen("after", max_tokens=4, temperature=0))
    s.tool("sum", [add], max_tokens=60, temperature=0)
    branches = s.fork(3)
    branches += lambda index: user(f"Reason {index}?") + assistant(gen("reason", max_tokens=6, seed=index))
    inner = branches[1].fork(2)
    inner += lambda index: user("Why?") + assistant(gen("why", max_tokens=5, seed=7 + index))
    inner.join("concate_and_append")
    branches.join("concate_and_append")
    s += user("So?") + assistant(gen("samples", n=3, seed=2, max_tokens=5))
    if s["own"] == " Rome":
        s += gen("cut", stop=["a"], max_tokens=20, temperature=0) + gen("rest", max_tokens=3, temperature=0)


def test_everything_together_gives_the_tokens_that_zmq_gives(backend: ramiform.Runtime, over_http: HttpRuntime) -> None:
    here, there = (everything.run("What is the capital of France?", backend=each) for each in (backend, over_http))
    assert there.text() == here.text()
    assert there.messages() == here.messages()
    names = ("answer", "city", "sure", "own", "after", "sum", "samples", "cut", "rest")
    for name in names:
        if name in ("city", "sure"):
            continue
        assert there[name] == here[name], name
    assert there["city"].choice == here["city"].choice
    assert there["sure"].probability == pytest.approx(here["sure"].probability, abs=1e-3)
    for name in ("answer", "after", "cut", "rest"):
        ours, theirs = there.get_meta_info(name), here.get_meta_info(name)
        assert ours["output_ids"] == theirs["output_ids"]
        assert ours["prompt_tokens"] == theirs["prompt_tokens"]
    assert there.get_meta_info("rest")["cached_tokens"] > 0


@ramiform.function
def fan(s: ProgramState, width: int) -> None:
    s += user("Name a colour.")
    branches = s.fork(width)
    branches += lambda index: assistant(gen("colour", max_tokens=4, temperature=0))
    branches.join()
    s += assistant(gen("end", max_tokens=3, temperature=0))


def test_a_compiled_program_is_one_request_and_another_no_more_than_its_operations(
    backend: ramiform.Runtime, over_http: HttpRuntime, num_requests: Callable[[], int]
) -> None:
    compiled = ramiform.function(fan.function)
    compiled.compile(width=4)
    state = compiled.run(4, backend=over_http)
    assert num_requests() == 1
    plain = fan.run(4, backend=over_http)
    assert 1 < num_requests() <= 1 + 6
    assert plain["colour"] == state["colour"] == fan.run(4)["colour"]


def test_a_tool_call_takes_one_request_more(over_http: HttpRuntime, num_requests: Callable[[], int]) -> None:
    @ramiform.function
    def calculate(s: ProgramState) -> None:
        s += "Question: What is 3 plus 4?\nCall:"
        s.tool("sum", [add], max_tokens=60, temperature=0)
        s += "Answer:" + gen("answer", max_tokens=4, temperature=0)

    calculate.compile()
    calculate.run(backend=over_http)
    assert num_requests() == 2


def test_an_exception_of_a_tool_fails_the_state_only(over_http: HttpRuntime) -> None:
    def fails(a: int) -> int:
        raise ValueError("no such thing")

    @ramiform.function
    def body(s: ProgramState) -> Any:
        s += "Call:"
        with_tool = s.fork(2)
        with_tool[0].tool("x", [fails], errors="raise", max_tokens=60)
        with_tool[1] += gen("y", max_tokens=3)
        with pytest.raises(RequestError, match="no such thing"):
            with_tool[0]["x"]
        return with_tool[1]["y"]

    assert isinstance(body.run(backend=over_http).ret_value, str)


def test_a_failed_branch_fails_its_join_and_not_the_other_branch(over_http: HttpRuntime) -> None:
    @ramiform.function
    def body(s: ProgramState) -> Any:
        branches = s.fork(2)
        branches[0] += "a" + gen("x", regex="(")
        branches[1] += "b" + gen("x", max_tokens=3)
        text = branches[1]["x"]
        branches.join("concate_and_append")
        with contextlib.suppress(RequestError):  # it may be known already
            s += "c"
        assert s.error() is not None
        return text

    assert isinstance(body.run(backend=over_http).ret_value, str)


def test_text_that_is_no_unicode_is_refused_at_its_line(over_http: HttpRuntime) -> None:
    @ramiform.function
    def body(s: ProgramState) -> None:
        s += "\ud800"

    with pytest.raises(RequestError, match=r"test_http_runtime.py:\d+: .*not valid Unicode"):
        body.run(backend=over_http)


@pytest.mark.parametrize("width", [1, 3])
def test_a_token_budget_holds_for_all_requests_together(over_http: HttpRuntime, width: int) -> None:
    @ramiform.function
    def turns(s: ProgramState) -> None:
        for number in range(8):
            branches = s.fork(width)
            branches += f"Turn {number}:" + gen("x", max_tokens=6, ignore_eos=True)
            branches[0]["x"]

    with pytest.raises(RequestError, match="budget of 20 generated tokens") as caught:
        turns.run(backend=over_http, max_total_tokens=20)
    assert caught.value.param == "max_total_tokens"


class _OldServer(http.server.BaseHTTPRequestHandler):
    """A runtime of an earlier version: it tells its version and has no other route."""

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/version" else 404, b'{"version": "0.1.2"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(404, b'{"error": {"message": "Not Found", "code": "not_found"}}')

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def test_a_server_without_the_route_is_named_with_its_version() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _OldServer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    backend = HttpRuntime(f"http://127.0.0.1:{server.server_port}")
    try:
        with pytest.raises(RequestError, match=r"no route POST /programs.*ramiform 0\.1\.2") as caught:
            fan.run(2, backend=backend)
        assert caught.value.code == "unsupported"
    finally:
        backend.close()
        server.shutdown()
        thread.join()
        server.server_close()


def test_closing_the_backend_fails_what_runs(backend: ramiform.Runtime, url: str) -> None:
    over_http = HttpRuntime(url)

    @ramiform.function
    def long(s: ProgramState) -> None:
        while True:  # however fast the runtime is
            [branch] = s.fork(1)
            branch += "Once" + gen("x", max_tokens=1900, ignore_eos=True)
            s["x"] = branch["x"]

    state = long.run(backend=over_http, stream=True)
    while not get_server_info(backend)["num_running"]:
        pass
    over_http.close()
    with pytest.raises(RuntimeFailed, match="the backend was closed"):
        state["x"]
    while get_server_info(backend)["num_running"]:
        pass  # the test's own timeout ends this


@pytest.mark.exhaustive
def test_an_abandoned_branch_ends_in_the_runtime_while_the_others_go_on(
    backend: ramiform.Runtime, over_http: HttpRuntime
) -> None:
    @ramiform.function
    def first(s: ProgramState) -> None:
        s += "Once"
        num_running = 0
        while num_running < 3:  # on a busy machine they may have ended by themselves before they are counted
            kept, *others = s.fork(4)
            kept += gen("x", max_tokens=3)
            for other in others:
                other += gen("x", max_tokens=1900, ignore_eos=True)
            kept["x"]
            num_running = get_server_info(backend)["num_running"]
        del other, others
        gc.collect()
        while get_server_info(backend)["num_running"]:
            pass  # the test's own timeout ends this
        kept += gen("y", max_tokens=2)
        s["z"] = kept["y"]

    assert isinstance(first.run(backend=over_http)["z"], str)


@pytest.mark.exhaustive
def test_one_branch_of_two_that_run_is_aborted_alone(backend: ramiform.Runtime, over_http: HttpRuntime) -> None:
    ran_alone = []

    @ramiform.function
    def two(s: ProgramState) -> None:
        s += "Once"
        kept, other = s.fork(2)
        for branch in (kept, other):
            branch += gen("x", max_tokens=1900, ignore_eos=True)
        del branch
        while get_server_info(backend)["num_running"] < 2 and not (kept.variables() or other.variables()):
            pass
        del other
        gc.collect()
        while (num_running := get_server_info(backend)["num_running"]) > 1:
            pass  # the test's own timeout ends this
        ran_alone.append(num_running == 1)
        s["ended"] = "x" in kept

    while not any(ran_alone):  # on a busy machine both may have ended by themselves
        two.run(backend=over_http)


def test_checks_and_retries_take_place_at_the_client(over_http: HttpRuntime, backend: ramiform.Runtime) -> None:
    seen: list[str] = []

    def third(value: str) -> bool:
        seen.append(value)
        return len(seen) % 3 == 0

    @ramiform.function
    def program(s: ramiform.ProgramState, on_invalid: str) -> None:
        s += ramiform.user("What is the capital of France?")
        s += ramiform.assistant(
            ramiform.gen("x", max_tokens=8, temperature=1.0, seed=3, check=third, retries=2, on_invalid=on_invalid)
        )
        branches = s.fork(2)
        branches += ramiform.user("And of Italy?") + ramiform.assistant(ramiform.gen("y", max_tokens=6, temperature=0))
        branches.join()

    for on_invalid in ("again", "tell"):
        results = []
        for where in (backend, over_http):
            state = program.run(on_invalid, backend=where)
            attempts = state.get_meta_info("x")["attempts"]
            results.append((state.text(), state["x"], state["y"], attempts))
        assert results[0] == results[1]
        assert len(results[0][3]) == 3

    with pytest.raises(ramiform.RequestError) as caught:
        program.run("raise", backend=over_http)
    assert caught.value.code == "invalid_result" or caught.value.param == "on_invalid"
