"""Programs on the real runtime and the model that ships: what the language promises, seen from outside."""

from __future__ import annotations

import re

import httpx
import pytest

import ramiform
from ramiform import assistant, gen, select, system, user
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer

pytestmark = pytest.mark.usefixtures("backend")

TEXT = "Question: What is the capital of France?\nAnswer:"


def complete(url: str, ids: list[int], **params: object) -> dict[str, object]:
    """The native route's answer to token ids, as a second opinion."""
    sampling = {"temperature": 0.0, "max_new_tokens": 12} | params
    answer = httpx.post(f"{url}/generate", json={"input_ids": ids, "sampling_params": sampling}, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_gen_equals_the_native_route(url: str) -> None:
    @ramiform.function
    def ask(s: ramiform.ProgramState) -> None:
        s += TEXT
        s += gen("answer", max_tokens=12, temperature=0)

    state = ask.run()
    ids = load_tokenizer(SHIPPED_MODEL).encode(TEXT, add_bos=True)
    expected = complete(url, ids)
    assert state["answer"] == expected["text"]
    assert state.text() == TEXT + str(expected["text"])


def test_a_conversation_is_the_chat_template_applied_to_it(url: str) -> None:
    @ramiform.function
    def talk(s: ramiform.ProgramState) -> None:
        s += system("Answer in one word.")
        s += user("Hello, my name is Ada.")
        s += assistant(gen("first", max_tokens=20, temperature=0))
        s += user("What is my name?")
        s += assistant(gen("second", max_tokens=20, temperature=0))

    state = talk.run()
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Hello, my name is Ada."},
        {"role": "assistant", "content": state["first"]},
        {"role": "user", "content": "What is my name?"},
    ]
    tokenizer = load_tokenizer(SHIPPED_MODEL)
    assert tokenizer.chat is not None
    prompt = tokenizer.chat.render(messages, add_generation_prompt=True)
    ids = tokenizer.encode(prompt)
    assert state.get_meta_info("second")["prompt_tokens"] == len(ids)
    assert complete(url, ids, max_new_tokens=20)["text"] == state["second"]
    assert state.messages() == [*messages, {"role": "assistant", "content": state["second"]}]


def test_branches_share_their_prefix_and_join_in_order() -> None:
    @ramiform.function
    def fan(s: ramiform.ProgramState, width: int) -> None:
        s += "Ada lives near a river and reads about spiders. " * 20
        branches = s.fork(width)
        for index, branch in enumerate(branches):
            branch += f"Item {index}:" + gen("item", max_tokens=6, temperature=0, ignore_eos=True)
        branches.join()

    ramiform.flush_cache()
    state = fan.run(8)
    alone = [fan.run(8)["item"][index] for index in range(8)]
    assert state["item"] == alone
    metas = state.get_meta_info("item")
    shared = min(meta["prompt_tokens"] for meta in metas) - 6
    computed = sum(meta["prompt_tokens"] - meta["cached_tokens"] for meta in metas)
    assert computed < shared + 8 * 12  # the prefix once, each branch's own few tokens


def test_concatenated_branches_are_the_text_that_the_next_gen_sees(url: str) -> None:
    @ramiform.function
    def gather(s: ramiform.ProgramState) -> None:
        s += "Facts:"
        branches = s.fork(3)
        branches += lambda index: f" fact {index},"
        branches.join("concate_and_append")
        s += gen("after", max_tokens=8, temperature=0)

    state = gather.run()
    assert state.text() == "Facts: fact 0, fact 1, fact 2," + state["after"]
    ids = load_tokenizer(SHIPPED_MODEL).encode("Facts: fact 0, fact 1, fact 2,", add_bos=True)
    assert complete(url, ids, max_new_tokens=8)["text"] == state["after"]


@pytest.mark.parametrize("method", ["token_length_normalized", "greedy_token_selection"])
def test_select_takes_the_likeliest_choice(url: str, method: str) -> None:
    choices = [" Berlin", " Paris", " Par", " the colour blue"]

    @ramiform.function
    def pick(s: ramiform.ProgramState) -> None:
        s += TEXT
        s += select("city", choices=choices, choices_method=getattr(ramiform, method))

    state = pick.run()
    tokenizer = load_tokenizer(SHIPPED_MODEL)
    start = len(tokenizer.encode(TEXT, add_bos=True))
    means = []
    for choice in choices:
        ids = tokenizer.encode(TEXT + choice, add_bos=True)
        body = {
            "input_ids": ids,
            "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": start,
        }
        answer = httpx.post(f"{url}/generate", json=body, timeout=120).json()
        logprobs = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
        assert len(logprobs) == len(ids) - start
        means.append(sum(logprobs) / len(logprobs))
    assert state.get_meta_info("city")["normalized_prompt_logprobs"] == pytest.approx(means, abs=1e-3)
    assert state["city"] == choices[means.index(max(means))]


def test_samples_are_reproducible_and_differ() -> None:
    @ramiform.function
    def sample(s: ramiform.ProgramState) -> None:
        s += "The spider" + gen("ends", n=4, max_tokens=12, temperature=1.0, seed=11)

    first, second = sample.run()["ends"], sample.run()["ends"]
    assert len(first) == 4
    assert first == second
    assert len(set(first)) > 1


def test_a_stream_is_the_text_in_pieces() -> None:
    @ramiform.function
    def tell(s: ramiform.ProgramState) -> None:
        # Long, because a reader that the system does not run gets what has come since in one piece.
        s += "Three facts about spiders:" + gen("facts", max_tokens=1000, temperature=0, ignore_eos=True)

    text = tell.run().text()
    pieces: list[str] = []
    while len(pieces) <= 3:
        pieces = list(tell.run(stream=True).text_iter())
        assert "".join(pieces) == text


@pytest.mark.slow
def test_stop_strings_end_the_text_across_tokens() -> None:
    @ramiform.function
    def stop(s: ramiform.ProgramState, at: list[str]) -> None:
        s += "Ada lives in" + gen("x", max_tokens=60, temperature=0, stop=at, ignore_eos=True)

    whole = stop.run([])["x"]
    for start in range(3, len(whole) - 3, 5):
        wanted = whole[start : start + 3]
        state = stop.run([wanted])
        assert state["x"] == whole[: whole.index(wanted)]
        assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": wanted}


def naive_cut(text: str, patterns: list[str]) -> tuple[str, str]:
    """Before the match that ends first and, of those, begins first; and that match."""
    parts = ((end, start) for end in range(len(text) + 1) for start in range(end))
    end, start = next(p for p in parts if any(re.fullmatch(pattern, text[p[1] : p[0]]) for pattern in patterns))
    return text[:start], text[start:end]


@pytest.mark.slow
@pytest.mark.parametrize(
    "patterns",
    [[r"[.,]"], [r"[a-z]+ [a-z]*t"], [r"(?i)the \w{3}", r"\w\n+"], [r"a[^a]{3,}a"], [r"(?s).{25}"]],
    ids=str,
)
def test_stop_patterns_end_the_text_across_tokens(patterns: list[str], url: str) -> None:
    @ramiform.function
    def stop(s: ramiform.ProgramState, **params: object) -> None:
        s += "Ada lives in" + gen("x", max_tokens=60, temperature=0, ignore_eos=True, **params)
        s += "|" + gen("y", max_tokens=2, temperature=0)

    whole = stop.run()["x"]
    text, matched = naive_cut(whole, patterns)
    state = stop.run(stop_regex=patterns, stop="no such text")
    assert state["x"] == text
    assert state.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": matched}
    assert state.text() == f"Ada lives in{text}|{state['y']}"
    streamed = stop.run(stop_regex=patterns, stream=True)
    assert "".join(streamed.text_iter("x")) == text
    assert stop.run(stop_regex=patterns, n=2)["x"] == [text, text]

    params = {"max_new_tokens": 60, "temperature": 0, "ignore_eos": True, "stop_regex": patterns}
    body = {"text": "Ada lives in", "sampling_params": params}
    answer = httpx.post(f"{url}/generate", json=body, timeout=120).json()
    assert answer["text"] == text
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": matched}
    params["no_stop_trim"] = True
    assert httpx.post(f"{url}/generate", json=body, timeout=120).json()["text"].startswith(text + matched)


def test_what_a_stop_cut_off_is_not_in_the_state() -> None:
    @ramiform.function
    def go_on(s: ramiform.ProgramState) -> None:
        s += TEXT + gen("a", max_tokens=12, temperature=0, stop="ris")
        s += "ma is a city." + gen("b", max_tokens=3, temperature=0)

    state = go_on.run()
    assert state["a"] == " Pa"
    assert state.text().startswith(TEXT + " Pama is a city.")


def test_many_programs_run_at_once() -> None:
    @ramiform.function
    def count(s: ramiform.ProgramState, number: int) -> None:
        s += f"Number {number}:" + gen("x", max_tokens=4, temperature=0, ignore_eos=True)

    arguments = [{"number": number} for number in range(60)]
    together = [state["x"] for state in count.run_batch(arguments, num_threads=16)]
    assert together == [count.run(**one)["x"] for one in arguments]


def test_typed_values_are_of_their_type() -> None:
    @ramiform.function
    def typed(s: ramiform.ProgramState) -> None:
        s += "Question: How many legs does a spider have?\nAnswer:"
        s += gen("legs", dtype=int, max_tokens=8, temperature=0)
        s += "\nStatement: A spider has legs.\nTrue:" + gen("true", dtype=bool, temperature=0)

    state = typed.run()
    assert type(state["legs"]) is int
    assert type(state["true"]) is bool
