"""/metrics after a known set of requests."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform
from ramiform.runtime.frontend.http.native.metrics import METRIC_ALIASES, exposition
from ramiform.runtime.protocol.metrics import FrontendMetrics, Histogram, sum_metrics

from .scrape import Scrape, scrape

DASHBOARD = Path(ramiform.__file__).parent / "docs/operate/grafana-dashboard.json"


@pytest.fixture
def client(url: str) -> Any:
    with httpx.Client(base_url=url, timeout=120) as made:
        yield made


def generate(client: httpx.Client, text: str, **sampling: Any) -> dict[str, Any]:
    settings = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True} | sampling
    response = client.post("/generate", json={"text": text, "sampling_params": settings})
    return response.json() if response.status_code != 200 else response.json()["meta_info"]  # type: ignore[no-any-return]


def test_tokens_and_times_are_those_of_the_answers(client: httpx.Client) -> None:
    client.post("/flush_cache")
    before = scrape(client)
    start = time.perf_counter()
    answers = [generate(client, text) for text in ("One two three", "One two three four", "Quite another prompt")]
    elapsed = time.perf_counter() - start
    asked = scrape(client).since(before)
    prompt = sum(answer["prompt_tokens"] for answer in answers)
    cached = sum(answer["cached_tokens"] for answer in answers)
    output = sum(answer["completion_tokens"] for answer in answers)
    assert cached > 0
    assert (asked("ramiform_prompt_tokens_total"), asked("ramiform_cached_tokens_total")) == (prompt, cached)
    assert asked("ramiform_generated_tokens_total") == output == 18
    assert (asked("ramiform_request_prompt_tokens_sum"), asked("ramiform_request_generated_tokens_sum")) == (
        prompt,
        output,
    )
    for name in ("time_to_first_token", "request", "queue", "prefill", "decode"):
        assert asked(f"ramiform_{name}_seconds_count") == 3, name
    # With a draft a pass may give several tokens at once.
    assert (
        asked("ramiform_inter_token_latency_seconds_count") == sum(answer["spec_verify_ct"] for answer in answers) - 3
    )
    parts = sum(asked(f"ramiform_{part}_seconds_sum") for part in ("queue", "prefill", "decode"))
    assert 0 < parts <= asked("ramiform_request_seconds_sum") <= elapsed
    assert parts == pytest.approx(
        sum(answer[f"{part}_time"] for answer in answers for part in ("queue", "prefill", "decode"))
    )
    in_vain = asked("ramiform_guessed_tokens_total") - asked("ramiform_accepted_tokens_total")
    # An output's last token is not computed.
    assert asked("ramiform_step_tokens_sum") == prompt - cached + output - 3 + in_vain
    assert asked("ramiform_steps_total") == asked("ramiform_step_seconds_count")
    assert asked("ramiform_request_outcomes_total", finished_reason="length") == 3


def test_gauges_are_zero_when_nothing_runs_and_say_what_holds_pages_when_something_does(client: httpx.Client) -> None:
    body = {
        "text": "Tell me everything.",
        "sampling_params": {
            "max_new_tokens": 1500,
            "ignore_eos": True,
            "temperature": 1,
            "n": 8,
        },  # runs for many seconds
        "stream": True,
    }
    ran = False
    while not ran:  # they may have ended by themselves before the client has left
        before = scrape(client)
        with (
            httpx.Client(base_url=client.base_url, timeout=120) as asking,
            asking.stream("POST", "/generate", json=body) as response,
        ):
            lines = response.iter_lines()  # kept: httpx hangs up when it is collected
            next(lines)
            during = scrape(client)
        # The stream was left: the request ends at once, though not before its step.
        while (after := scrape(client))("ramiform_requests_running") + after("ramiform_requests_waiting"):
            continue
        ran = not after.since(before)("ramiform_request_outcomes_total", finished_reason="length")
    assert during("ramiform_requests_running") + during("ramiform_requests_waiting") == 8
    assert during("ramiform_kv_held") > 0
    assert after("ramiform_kv_held") == after("vllm:kv_cache_usage_perc") == after("ramiform_requests_waiting") == 0
    assert after.since(during)("ramiform_request_outcomes_total", finished_reason="abort") == 8
    assert after.since(during)("ramiform_requests_aborted_total") == 8


@pytest.mark.exhaustive
def test_grammars_are_timed_once_each_and_masks_where_there_is_a_choice(client: httpx.Client) -> None:
    before = scrape(client)
    regex = "[a-f]{4}x"
    for _ in range(2):
        assert "finish_reason" in generate(client, "A:", regex=regex, ignore_eos=False, max_new_tokens=20)
    assert "error" in generate(client, "A:", regex="[metrics-")  # no other test asks for it: failures are remembered
    asked = scrape(client).since(before)
    assert asked("ramiform_grammar_compile_seconds_count") == 1
    assert asked("ramiform_grammar_errors_total") == 1
    assert asked("ramiform_grammars") >= 1
    assert asked("ramiform_grammar_bytes") > 0
    assert asked("ramiform_grammar_renewals_total") == 0
    assert asked("ramiform_request_outcomes_total", finished_reason="error") == 1
    # What is forced needs no mask.
    assert 4 <= asked("ramiform_grammar_mask_seconds_count") <= asked("ramiform_generated_tokens_total")


def test_answers_are_counted_by_their_route_and_status(client: httpx.Client) -> None:
    before = scrape(client)
    client.get("/health")
    client.get("/v1/models/nobody")
    client.get("/nowhere/at/all")
    client.post("/v1/completions", json={"prompt": 5, "model": "x"})
    asked = scrape(client).since(before)
    assert asked("ramiform_http_requests_total", route="/health", status="200", method="GET") == 1
    assert asked("ramiform_http_errors_total", route="unknown", status="404") == 1
    assert asked("ramiform_http_errors_total", route="/v1/completions", method="POST") == 1
    [model_route] = {
        dict(labels)["route"]
        for name, labels in scrape(client).samples
        if name == "ramiform_http_errors_total" and "/v1/models/{" in dict(labels)["route"]
    }
    assert asked("ramiform_http_errors_total", route=model_route, status="404") == 1
    assert asked("ramiform_http_requests_total") == 5  # those, and the scrape before
    assert asked("ramiform_http_request_seconds_count") == 5


def test_the_names_of_others_carry_our_values(client: httpx.Client) -> None:
    scraped = scrape(client)
    for ours, others in METRIC_ALIASES.items():
        own = scraped.families[f"ramiform_{ours}"]
        for name in others:
            family = scraped.families[name]
            assert family.type == own.type
            renamed = [(s.name.replace(name, own.name, 1), s.labels, s.value) for s in family.samples]
            assert renamed == [(s.name, s.labels, s.value) for s in own.samples]


def test_an_endpoint_picker_finds_the_gauges_and_labels_that_it_reads(client: httpx.Client) -> None:
    # As the metrics extractor of llm-d's router does: the family must exist, and its latest sample counts; facts of the
    # cache are integers in labels, adapters are comma-separated in labels of the newest series by value.
    info = client.get("/get_server_info").json()
    families = scrape(client).families
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        [sample] = families[name].samples
        assert (families[name].type, sample.value) == ("gauge", 0)
    [cache] = families["vllm:cache_config_info"].samples
    page = int(cache.labels["block_size"])
    assert page * int(cache.labels["num_gpu_blocks"]) == info["max_total_num_tokens"]
    newest = max(families["vllm:lora_requests_info"].samples, key=lambda sample: sample.value)
    assert int(newest.labels["max_lora"]) == 0
    for state in ("running_lora_adapters", "waiting_lora_adapters"):
        assert not [name for name in newest.labels[state].split(",") if name.strip()]
    [size], [num] = (families[name].samples for name in ("sglang:page_size", "sglang:num_pages"))
    assert (size.value, num.value) == (page, int(cache.labels["num_gpu_blocks"]))


def test_histograms_are_cumulative_and_end_with_their_count(client: httpx.Client) -> None:
    for family in scrape(client).families.values():
        if family.type != "histogram":
            continue
        series: dict[str, list[tuple[float, float]]] = {}
        counts = {}
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            key = json.dumps(labels, sort_keys=True)
            if sample.name.endswith("_bucket"):
                series.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        for key, buckets in series.items():
            assert buckets == sorted(buckets)
            assert [value for _, value in buckets] == sorted(value for _, value in buckets)
            assert buckets[-1] == (float("inf"), counts[key])


def test_frontends_add_up() -> None:
    parts = []
    for index in (1, 2):
        part = FrontendMetrics()
        part.ttft.observe(0.02 * index)
        part.answered("GET /health", 200, 0.1)
        part.count("stop")
        parts.append(part)
    whole = Scrape(exposition(sum_metrics(parts), None).decode())
    assert whole("ramiform_time_to_first_token_seconds_count") == 2
    assert whole("ramiform_time_to_first_token_seconds_sum") == pytest.approx(0.06)
    assert whole("ramiform_http_requests_total", route="/health") == 2
    assert whole("ramiform_request_outcomes_total", finished_reason="stop") == 2
    assert parts[0].ttft.num == 1  # the parts are as they were


def test_a_value_at_a_bound_is_below_it() -> None:
    values = Histogram.over([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        values.observe(value)
    assert (values.counts, values.num, values.sum) == ([2, 2, 1], 5, 14.0)


def test_the_dashboard_shows_only_what_is_exported(client: httpx.Client) -> None:
    generate(client, "x")
    client.get("/nowhere")
    exported = {name for name, _ in scrape(client).samples}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    named = {name for expression in expressions for name in re.findall(r"\b(?:ramiform_|vllm:|sglang:)\w+", expression)}
    assert len(named) > 15
    assert named <= exported


@pytest.mark.exhaustive
def test_guesses_are_counted_as_the_answers_say() -> None:
    with (
        ramiform.Runtime(port=0, speculative="ngram", speculative_adaptive=False, num_pages=256) as runtime,
        httpx.Client(base_url=runtime.url, timeout=120) as client,
    ):
        answers = [generate(client, text, max_new_tokens=200) for text in ("One two three", "Text: ", "A list:")]
        asked = scrape(client)
    assert asked("ramiform_accepted_tokens_total") > 0
    assert asked("ramiform_guessed_tokens_total") >= asked("ramiform_accepted_tokens_total")
    assert asked("ramiform_accepted_guesses_sum") == asked("ramiform_accepted_tokens_total")
    # Passes without a guess are the answers' too, but no verifications.
    assert asked("ramiform_accepted_guesses_count") <= sum(answer["spec_verify_ct"] for answer in answers)
    saved = sum(answer["completion_tokens"] - answer["spec_verify_ct"] for answer in answers)
    assert asked("ramiform_accepted_tokens_total") == saved


@pytest.mark.exhaustive
def test_drafts_are_shown_alike_in_answers_in_the_server_s_figures_and_in_metrics() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 40}
    prompt = {"prompt": "One two three", "max_tokens": 40, "ignore_eos": True}
    with (
        ramiform.Runtime(port=0, speculative="suffix", wait_for_loops=True) as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=120) as client,
    ):
        name = client.get("/get_server_info").json()["name"]
        answers = [
            client.post(route, json={"model": name, "temperature": 0, **body}).json()
            for route, body in [("/v1/completions", prompt), ("/v1/chat/completions", question)] * 3
            + [("/v1/chat/completions", {**question, "response_format": form})]
        ]
        meta = generate(client, "One two three", max_new_tokens=40)
        shown, metrics = client.get("/get_server_info").json(), scrape(client)
    details = [answer["usage"]["completion_tokens_details"] for answer in answers]
    accepted = [each["accepted_prediction_tokens"] for each in details] + [meta["spec_accept_token_num"]]
    rejected = [each["rejected_prediction_tokens"] for each in details]
    guessed = [sum(each) for each in zip(accepted, rejected, strict=False)] + [meta["spec_draft_token_num"]]
    assert sum(guessed) == shown["num_guessed_tokens"] == metrics("ramiform_guessed_tokens_total") > 0
    assert sum(accepted) == shown["num_accepted_tokens"] == metrics("ramiform_accepted_tokens_total")
    for answer, num_guessed, num_accepted in zip(answers, guessed, accepted, strict=False):
        timings = answer["timings"]
        assert (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)) == (num_guessed, num_accepted)
        assert (timings.get("accepted_length", 1) > 1) == (num_accepted > 0)
    assert shown["draft_source"] == "suffix"
    assert {state["text"] for state in shown["speculation"]} == {"free", "constrained"}
    for state in shown["speculation"]:
        assert state["why"]
        labels = {"source": "suffix", "text": state["text"], "requests": str(state["num_rows"])}
        assert metrics("ramiform_speculation_open", **labels) == state["is_open"]
