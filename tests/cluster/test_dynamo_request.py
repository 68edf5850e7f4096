"""Requests of Dynamo's frontend as messages to the core, and the core's tokens as Dynamo's chunks."""

from __future__ import annotations

from typing import Any

import pytest

from ramiform.runtime.dynamo.request import chunk_of, generate_of, session_of
from ramiform.runtime.protocol.core import Finish, ModelInfo, SoftPin, Tokens
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams, TokenLogprob

INFO = ModelInfo(
    name="m",
    path="/m",
    architecture="",
    num_parameters=0,
    vocab_size=10,
    context_length=100,
    dtype="",
    device="cpu",
    page_size=16,
    num_pages=64,
    version="",
)


def request(**groups: Any) -> dict[str, Any]:
    return {"token_ids": [1, 2, 3], "sampling_options": {}, "stop_conditions": {}, **groups}


def test_every_sampling_option_reaches_the_core() -> None:
    options = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "top_n_sigma": 1.5,
        "seed": 7,
        "n": 1,
        "best_of": 1,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
        "logit_bias": {"4": 2},
    }
    stops = {
        "max_tokens": 9,
        "min_tokens": 2,
        "stop": ["end"],
        "ignore_eos": True,
        "stop_token_ids": [5],
        "stop_token_ids_hidden": [6, 5],
    }
    message = generate_of(request(sampling_options=options, stop_conditions=stops, routing={"priority": 3}), INFO)
    sampling = message.sampling
    draw = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.top_n_sigma, sampling.seed)
    assert draw == (0.5, 0.9, 5, 0.1, 1.5, 7)
    penalties = (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty)
    assert (penalties, sampling.logit_bias) == ((0.1, 0.2, 1.1), {4: 2.0})
    assert (sampling.max_new_tokens, sampling.min_new_tokens, sampling.ignore_eos) == (9, 2, True)
    assert (sampling.stop, sampling.stop_token_ids, message.priority) == (("end",), (5, 6), 3)
    assert (message.tokens, message.program, message.namespace, message.logprobs) == ([1, 2, 3], None, "", None)


def test_without_a_limit_the_rest_of_the_context_is_the_limit() -> None:
    assert generate_of(request(), INFO).sampling.max_new_tokens == 97
    assert generate_of(request(stop_conditions={"max_tokens": 5000}), INFO).sampling.max_new_tokens == 97
    with pytest.raises(RequestError, match="maximum context length is 100 tokens"):
        generate_of(request(token_ids=[1] * 100), INFO)


def test_minus_one_and_zero_switch_top_k_off_and_a_seed_is_drawn() -> None:
    for off in (-1, 0, None):
        sampling = generate_of(request(sampling_options={"top_k": off}), INFO).sampling
        assert sampling.top_k is None
        assert sampling.seed is not None


@pytest.mark.parametrize(
    ("name", "value", "constraint"),
    [
        ("json", {"type": "object"}, Constraint("json_schema", '{"type": "object"}')),
        ("regex", "[a-z]+", Constraint("regex", "[a-z]+")),
        ("choice", ["a", "b"], Constraint("choices", '["a", "b"]')),
        ("grammar", "root ::= x", Constraint("grammar", "root ::= x")),
        ("structural_tag", {"format": {}}, Constraint("structural_tag", '{"format": {}}')),
    ],
)
def test_guided_decoding_is_a_constraint(name: str, value: Any, constraint: Constraint) -> None:
    message = generate_of(request(sampling_options={"guided_decoding": {name: value}}), INFO)
    assert message.sampling.constraint == constraint


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ({"sampling_options": {"n": 2}}, "sampling_options.n"),
        ({"sampling_options": {"use_beam_search": True}}, "sampling_options.use_beam_search"),
        ({"sampling_options": {"temperature": -1}}, "temperature"),
        ({"sampling_options": {"temperature": "hot"}}, "sampling_options"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "choice": ["b"]}}}, "guided_decoding"),
        ({"sampling_options": {"guided_decoding": {"regex": "a"}}, "require_reasoning": True}, "guided_decoding"),
        ({"stop_conditions": {"max_thinking_tokens": 4}}, "stop_conditions.max_thinking_tokens"),
        ({"multi_modal_data": {"image_url": ["x"]}}, "multi_modal_data"),
        ({"routing": {"lora_name": "style"}}, "routing.lora_name"),
        ({"routing": {"priority": "high"}}, "routing.priority"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_name(groups: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        generate_of(request(**groups), INFO)
    assert caught.value.param == field


def test_a_session_is_a_program_whose_state_goes_on_and_a_salt_is_a_namespace() -> None:
    asked = request(agent_context={"session_id": " s1 ", "session_final": True}, routing={"cache_salt": "tenant"})
    message = generate_of(asked, INFO)
    assert (message.program, message.soft_pins, message.namespace) == ("session s1", [SoftPin(0)], "tenant")
    assert session_of(asked) == ("s1", True)
    assert session_of(request(agent_context={"session_id": ""})) == (None, False)
    for nvext in ({"nvext": {"cache_salt": "x"}}, {"extra_args": {"nvext": {"cache_salt": "x"}}}):
        assert generate_of(request(**nvext), INFO).namespace == "x"


def test_log_probabilities_have_one_entry_a_token_with_the_token_itself_among_the_alternatives() -> None:
    asked = generate_of(request(output_options={"logprobs": 2, "prompt_logprobs": 1}), INFO)
    assert asked.logprobs == LogprobParams(num_top=2, prompt_from=0)
    value = TokenLogprob(-3.0, 9, [(-0.1, 4), (-2.0, 5)])
    last = Tokens(
        rid="r", ids=[9], num_cached=2, finish=Finish("stop", 9), logprobs=[value], prompt_logprobs=[None, value]
    )
    chunk = chunk_of(last, 3, 7)
    assert chunk["log_probs"] == [-3.0]
    assert [(top["rank"], top["token_id"]) for top in chunk["top_logprobs"][0]] == [(1, 4), (2, 5), (3, 9)]
    first, second = chunk["engine_data"]["prompt_logprobs"]
    assert first is None
    assert second["4"] == {"logprob": -0.1, "rank": 1}
    assert (chunk["finish_reason"], chunk["index"], chunk["token_ids"]) == ("stop", 0, [9])
    assert chunk["completion_usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 7,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_an_aborted_output_is_cancelled_and_an_unfinished_one_has_no_end() -> None:
    aborted = Tokens(rid="r", ids=[], num_cached=0, finish=Finish("abort"))
    assert chunk_of(aborted, 3, 0)["finish_reason"] == "cancelled"
    assert chunk_of(Tokens(rid="r", ids=[1], num_cached=0), 3, 1) == {"token_ids": [1], "index": 0}
