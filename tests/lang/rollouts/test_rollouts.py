"""Rollouts on the runtime. Judge: transformers' log-probabilities of the very token ids, and the draws by hand."""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
import torch
import transformers
from safetensors.torch import load_file

import ramiform
from ramiform import ProgramState, Scripted, assistant, gen, user
from ramiform.lang.rollouts.trajectory import Trajectory
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(SHIPPED_MODEL)
CITIES = [{"country": "France"}, {"country": "Peru"}]
Logprobs = Callable[[list[int]], torch.Tensor]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def logits_of() -> Logprobs:
    """Return a function from ids to the float64 logits [T, V] of what follows each."""
    model = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)

    def compute(ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
        return logits.double()

    return compute


@ramiform.function
def capital(s: ProgramState, country: str) -> None:
    s += "A town and a river. " * 30 + f"Question: What is the capital of {country}?\nAnswer:"
    s += gen("answer", max_tokens=7, stop="\n")


def no_reward(example: Any, state: ProgramState) -> float:
    return 0.0


def check(one: Trajectory, logits_of: Logprobs, draw: Callable[[torch.Tensor, int], float]) -> None:
    """Compare each generated token with transformers; `draw` gives log p of a token in the drawn distribution."""
    tokens, logits = one.tokens, logits_of(one.tokens.ids)
    for place in range(1, len(tokens)):
        token, origin = tokens.ids[place], tokens.origins[place]
        if origin == "given":
            facts = tokens.logprobs[place], tokens.drawn_logprobs[place], tokens.versions[place], tokens.draws[place]
            assert facts == (None, None, None, None)
            continue
        own = logits[place - 1].log_softmax(0)[token].item()
        assert tokens.logprobs[place] == pytest.approx(own, abs=1e-4)
        wanted = 0.0 if origin == "forced" else draw(logits[place - 1], token)
        assert tokens.drawn_logprobs[place] == pytest.approx(wanted, abs=1e-3)
        assert tokens.versions[place] == "default"


def nucleus(temperature: float, top_p: float) -> Callable[[torch.Tensor, int], float]:
    def draw(logits: torch.Tensor, token: int) -> float:
        p, order = (logits / temperature).softmax(0).sort(descending=True)
        kept = order[: int((p.cumsum(0) - p < top_p).sum())]
        return (logits / temperature)[kept].log_softmax(0)[(kept == token).nonzero()[0, 0]].item()

    return draw


def all_ids(found: ramiform.Rollouts) -> list[list[list[int]]]:
    return [[one.tokens.ids for one in group.trajectories] for group in found]


def test_tokens_are_the_runtimes_own_with_both_log_probabilities(
    backend: ramiform.Runtime, logits_of: Logprobs
) -> None:
    seen: list[list[int]] = []

    def reward(example: Any, state: ProgramState) -> bool:
        seen.append(state.get_meta_info("answer")["output_ids"])
        return "Paris" in state["answer"]

    found = ramiform.rollouts(capital, CITIES, reward, group=3, seed=5, temperature=0.8, top_p=0.9)
    assert [len(group.trajectories) for group in found] == [3, 3]
    for group in found:
        for one in group.trajectories:
            check(one, logits_of, nucleus(0.8, 0.9))
            [generation] = one.generations
            assert (generation.name, generation.start) == ("answer", one.prompt_length)
            assert one.tokens.ids[generation.start : generation.end] in seen
            assert TOKENIZER.decode(one.tokens.ids[: one.prompt_length]).endswith("\nAnswer:")
    again = ramiform.rollouts(capital, CITIES, reward, group=3, seed=5, temperature=0.8, top_p=0.9)
    assert all_ids(again) == all_ids(found)


def test_a_groups_prompt_is_computed_once(backend: ramiform.Runtime) -> None:
    ramiform.flush_cache()
    [group] = ramiform.rollouts(capital, CITIES[:1], no_reward, group=6)
    size = group.trajectories[0].prompt_length
    assert size > 150
    assert group.prompt_tokens == 6 * size
    # Each request computes the last token of its prompt, whose logits it needs.
    assert size <= group.prompt_tokens - group.cached_tokens <= size + 5


def test_chats_mark_what_the_model_wrote_and_not_the_template(backend: ramiform.Runtime, logits_of: Logprobs) -> None:
    @ramiform.function
    def chat(s: ProgramState) -> None:
        s += user("What is the capital of France?") + assistant(gen("first", max_tokens=20))
        s += user("And of Peru?") + assistant(gen("second", max_tokens=20))

    [group] = ramiform.rollouts(chat, [{}], no_reward, group=2)
    for one in group.trajectories:
        check(one, logits_of, lambda logits, token: logits.log_softmax(0)[token].item())
        assert [generation.name for generation in one.generations] == ["first", "second"]
        for generation in one.generations:
            end = one.tokens.ids[generation.end - 1]
            assert generation.finish == "length" or end in TOKENIZER.eos_ids  # the model drew the end of its message
        texts = []
        for place, (token, chosen) in enumerate(zip(one.tokens.ids, one.tokens.mask, strict=True)):
            if not chosen and (place == 0 or one.tokens.mask[place - 1]):
                texts.append("")
            if not chosen:
                texts[-1] += TOKENIZER.decode([token], skip_special_tokens=False)
        assert len(texts) == 3
        assert "And of Peru?" in texts[1]
        assert texts[1].count("<|user|>") == 1


def test_forks_are_branches_with_rewards_of_their_own(backend: ramiform.Runtime, logits_of: Logprobs) -> None:
    @ramiform.function
    def tree(s: ProgramState, country: str) -> None:
        s += f"Question: What is the capital of {country}?\nAnswer:" + gen("start", max_tokens=3)
        branches = s.fork(3)
        branches += gen("rest", max_tokens=3)
        deeper = branches[1].fork(2)
        deeper += " and" + gen("more", max_tokens=2)

    rewards: list[float] = []

    def leaf_reward(example: Any, branch: ProgramState) -> float:
        rewards.append(len(branch.text()))
        return rewards[-1]

    [group] = ramiform.rollouts(tree, CITIES[:1], leaf_reward=leaf_reward, group=2, temperature=1.0)
    assert len(group.trajectories) == 8  # of each run: two branches, and two of the third
    assert sorted(one.reward for one in group.trajectories) == sorted(rewards)
    for one in group.trajectories:
        check(one, logits_of, lambda logits, token: logits.log_softmax(0)[token].item())
    root = group.root
    assert root.end == group.trajectories[0].prompt_length
    assert [len(child.leaves) for child in root.children] == [4, 4]
    starts = [[group.trajectories[n].generations[0] for n in child.leaves] for child in root.children]
    assert all(len({(each.start, each.end) for each in own}) == 1 for own in starts)
    rows = ramiform.Rollouts([group]).rows("branch")
    # Weighted by the shares, each drawn token counts once.
    drawn = {(draw, place) for one in group.trajectories for place, draw in enumerate(one.tokens.draws) if draw}
    pairs = [pair for row in rows for pair in zip(row["shares"], row["origins"], strict=True)]
    assert sum(share for share, origin in pairs if origin != "given") == pytest.approx(len(drawn))
    assert json.loads(json.dumps(rows)) == rows


def test_tokens_that_a_grammar_forces_are_no_choices(backend: ramiform.Runtime, logits_of: Logprobs) -> None:
    @ramiform.function
    def answer(s: ProgramState) -> None:
        s += "Answer:" + gen("x", regex=r" The capital of the country is (Paris|Rome)\.", max_tokens=40)

    [group] = ramiform.rollouts(answer, [{}], no_reward, group=2)
    for one in group.trajectories:
        assert {"forced", "sampled"} <= set(one.tokens.origins)
        own = [d for o, d in zip(one.tokens.origins, one.tokens.drawn_logprobs, strict=True) if o != "given"]
        total = math.fsum(value or 0.0 for value in own)
        text = TOKENIZER.decode(one.tokens.ids)
        assert text.rstrip().endswith(("Paris.", "Rome."))
        assert total < 0  # the choice of the city, and nothing of the words before it
        assert one.tokens.mask == [origin == "sampled" for origin in one.tokens.origins]


def test_tools_truncation_and_failures_are_told(backend: ramiform.Runtime) -> None:
    def lookup(name: str) -> str:
        """Look something up."""
        return f"{name} is there"

    @ramiform.function
    def use(s: ProgramState, country: str) -> str:
        s += f"Look up {country}:\n" + gen("found", tools=[lookup], max_tokens=60) + gen("then", max_tokens=3)
        if country == "Peru":
            raise ValueError("no Peru")
        return str(s["found"])

    first, second = ramiform.rollouts(use, CITIES, no_reward, group=2)
    for one in first.trajectories:
        [tool] = one.tools
        assert (tool.generation, one.generations[0].name) == (0, "found")
        if tool.error is None:
            assert (tool.name, tool.text) == ("lookup", f"{(tool.arguments or {})['name']} is there")
        assert one.is_truncated == any(generation.finish == "length" for generation in one.generations)
        given = one.tokens.ids[one.generations[0].end : one.generations[1].start]
        assert "\nResult: " in TOKENIZER.decode(given)
    assert second.trajectories == ()
    assert [str(one.error).endswith("no Peru") for one in second.failed] == [True, True]
    assert ramiform.Rollouts([first, second]).for_trl()["reward"] == [0.0, 0.0]


def test_what_a_checked_gen_rejected_is_not_in_the_trajectory(backend: ramiform.Runtime, logits_of: Logprobs) -> None:
    attempts: list[str] = []

    def third(text: str) -> bool:
        attempts.append(text)
        return len(attempts) % 3 == 0

    @ramiform.function
    def checked(s: ProgramState) -> None:
        s += (
            "Numbers: 1, 2,"
            + gen("x", max_tokens=4, check=third, retries=5, on_invalid="again")
            + gen("y", max_tokens=2)
        )

    [group] = ramiform.rollouts(checked, [{}], no_reward, group=1)
    [one] = group.trajectories
    assert [generation.name for generation in one.generations] == ["x", "y"]
    check(one, logits_of, lambda logits, token: logits.log_softmax(0)[token].item())


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({"group": 0}, "group"),
        ({"reward": None}, "reward"),
        ({"leaf_reward": no_reward}, "reward"),
        ({"temprature": 1}, "temprature"),
        ({"n": 2}, "n"),
        ({"dataset": []}, "dataset"),
        ({"dataset": [{}]}, "dataset"),
        ({"reward": lambda example, state: "good"}, "reward"),
    ],
)
def test_bad_arguments_are_named(backend: ramiform.Runtime, arguments: dict[str, Any], param: str) -> None:
    given = {"dataset": CITIES[:1], "reward": no_reward, "group": 1} | arguments
    with pytest.raises(ramiform.RequestError) as caught:
        ramiform.rollouts(capital, **given)
    assert caught.value.param == param


def test_batches_have_the_groups_of_rollouts_from_an_endless_dataset(backend: ramiform.Runtime) -> None:
    cities = [{"country": name} for name in ("France", "Peru", "Japan", "Kenya", "Chile", "Cuba", "Mali", "Fiji")]
    read: list[str] = []

    def endless() -> Iterator[dict[str, str]]:
        for city in itertools.cycle(cities):
            read.append(city["country"])
            yield city

    whole = ramiform.rollouts(capital, cities[:6], no_reward, group=2, seed=5)
    found = []
    for batch in ramiform.rollout_batches(capital, endless(), no_reward, group=2, batch=3, max_staleness=0, seed=5):
        found += all_ids(batch)
        if len(found) == 6:
            break
        assert len(read) == 3  # nothing starts before the next batch is asked for
    assert found == all_ids(whole)
    assert len(read) == 6
    assert not [thread for thread in threading.enumerate() if thread.name == "ramiform-batch"]
    listed = ramiform.rollout_batches(capital, cities, no_reward, group=1, batch=3, max_staleness=2)
    assert [len(batch) for batch in listed] == [3, 3, 2]


@pytest.mark.parametrize(
    ("arguments", "param"), [({"batch": 0}, "batch"), ({"max_staleness": -1}, "max_staleness"), ({"group": 0}, "group")]
)
def test_bad_arguments_of_batches_are_named_at_once(
    backend: ramiform.Runtime, arguments: dict[str, Any], param: str
) -> None:
    with pytest.raises(ramiform.RequestError) as caught:
        ramiform.rollout_batches(capital, CITIES, no_reward, **arguments)
    assert caught.value.param == param
    with pytest.raises(ramiform.RequestError, match=r"dataset\[0\] must be a mapping"):
        next(ramiform.rollout_batches(capital, iter(["France"]), no_reward))  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["retract", "keep"])
def test_runs_go_on_while_weights_change_and_no_token_is_older_than_allowed(mode: Literal["retract", "keep"]) -> None:
    @ramiform.function
    def tell(s: ProgramState, length: int) -> None:
        s += user("Tell me about France.")
        for number in range(length):
            s += assistant(gen(f"part{number}", max_tokens=24, ignore_eos=True)) + user("Go on.")

    plain = load_file(SHIPPED_MODEL / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = [{name: (1 + 0.1 * number) * plain[name]} for number in range(7)]
    dataset = ({"length": length} for length in itertools.cycle((1, 6, 1, 1)))
    batches = []
    with ramiform.Engine(dtype="float32", log_level="error") as engine:
        engine.update_weights(weights[0], version="0")
        found = ramiform.rollout_batches(
            tell, dataset, no_reward, group=2, batch=3, max_staleness=2, backend=engine.runtime
        )
        for number, batch in enumerate(found, start=1):
            batches.append(batch)
            if number == 7:
                break
            engine.update_weights(weights[number], version=str(number), mode=mode)
    judge = transformers.AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype=torch.float32)
    num_judged, num_mixed = 0, 0
    for number, batch in enumerate(batches):
        for one in (one for group in batch for one in group.trajectories):
            versions = [int(version) for version in one.tokens.versions if version is not None]
            assert versions == sorted(versions)
            assert number - 2 <= versions[0] <= versions[-1] <= number
            num_mixed += len({*versions}) > 1
            if mode == "keep" or len({*versions}) == 1:
                continue
            for version in {*versions}:
                judge.load_state_dict({name: weights[version][name].float()}, strict=False)
                with torch.inference_mode():
                    own = judge(torch.tensor([one.tokens.ids])).logits[0].log_softmax(-1)
                for place in range(1, len(one.tokens)):
                    if one.tokens.versions[place] == str(version):
                        wanted = own[place - 1, one.tokens.ids[place]].item()
                        assert one.tokens.drawn_logprobs[place] == pytest.approx(wanted, abs=2e-3)
                        num_judged += 1
    assert num_mixed > 0  # runs that began with other weights than they ended with
    assert mode == "keep" or num_judged > 100


@pytest.mark.exhaustive
def test_over_http_the_trajectories_are_the_same() -> None:
    @ramiform.function
    def tree(s: ProgramState, country: str) -> None:
        s += user(f"What is the capital of {country}?") + assistant(gen("first", max_tokens=12))
        branches = s.fork(2)
        branches += user("Why?") + assistant(gen("second", max_tokens=6))

    with ramiform.Engine(port=0, log_level="error") as engine:
        over_http = ramiform.HttpRuntime(engine.runtime.url)
        backends = (engine.runtime, over_http)
        found = [
            ramiform.rollouts(tree, CITIES, leaf_reward=no_reward, group=2, seed=3, backend=one) for one in backends
        ]
        over_http.close()
    assert all_ids(found[0]) == all_ids(found[1])
    assert [len(group.trajectories) for group in found[1]] == [4, 4]
    spans = [[one.generations for group in each for one in group.trajectories] for each in found]
    assert spans[0] == spans[1]


@pytest.mark.exhaustive
def test_tokens_name_the_weights_that_sampled_them() -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    weights = {name: 1.5 * load_file(SHIPPED_MODEL / "model.safetensors")[name]}
    with ramiform.Engine(dtype="float32", log_level="error") as engine:
        before = ramiform.rollouts(capital, CITIES[:1], no_reward, group=2, backend=engine.runtime)
        engine.update_weights(weights, version="second")
        after = ramiform.rollouts(capital, CITIES[:1], no_reward, group=2, backend=engine.runtime)
    for found, version in ((before, "default"), (after, "second")):
        for one in found[0].trajectories:
            chosen = {name for name, was in zip(one.tokens.versions, one.tokens.mask, strict=True) if was}
            assert chosen == {version}
    size = after[0].trajectories[0].prompt_length
    assert after[0].prompt_tokens - after[0].cached_tokens >= size  # nothing that other weights computed is reused


def test_several_samples_and_backends_of_texts_are_refused(backend: ramiform.Runtime) -> None:
    @ramiform.function
    def several(s: ProgramState) -> None:
        s += "a" + gen("x", n=2, max_tokens=2)

    with pytest.raises(ramiform.RequestError, match="fork the state instead"):
        ramiform.rollouts(several, [{}], no_reward, group=1)
    with pytest.raises(ramiform.RequestError, match="this backend holds texts"):
        ramiform.rollouts(capital, CITIES, no_reward, group=1, backend=Scripted(["Paris"] * 2))
