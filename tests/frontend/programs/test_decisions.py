"""Questions answered by probabilities. Judge: the model's own formula on prompts written by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from ramiform.runtime.frontend.programs import decisions as module
from ramiform.runtime.frontend.programs.content import TokenContent
from ramiform.runtime.frontend.programs.decisions import Decided, decide
from ramiform.runtime.protocol.decisions import (
    Level,
    Option,
    Pick,
    PickAnswer,
    Predicate,
    PredicateAnswer,
    Question,
    Rate,
    RateAnswer,
)
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Decide, Done, Failed, Gen, RoleBegin, RoleEnd, Text
from ramiform.tests.frontend.fake_core import logprob
from ramiform.tests.frontend.harness import House, house, run, shipped_tokenizer

TOKENIZER = shipped_tokenizer()
BOS = [TOKENIZER.bos_id] if TOKENIZER.adds_bos and TOKENIZER.bos_id is not None else []
TEXT = "Ada lives in Paris. She is 36."


def pick(*choices: str | bool, instructions: str = "Which?") -> Pick:
    return Pick(instructions=instructions, choices=tuple(map(Option, choices)))


def rate(*levels: str) -> Rate:
    return Rate(instructions="How?", levels=tuple(map(Level, levels)))


async def ask(built: House, *questions: Question, text: str = TEXT) -> Decided:
    content = TokenContent(TOKENIZER, built.frontend._generator.encoder)
    content.append_text(text)
    return await decide(built.frontend._generator, content, questions)


def expected(prompt: str, labels: Sequence[str]) -> list[float]:
    """Softmax of the log-probability of each label with what ends it."""
    masses = []
    for label in labels:
        ids = BOS + TOKENIZER.encode(prompt + label, continues=True)
        masses.append(math.fsum(logprob(ids[:place], ids[place]) for place in range(1, len(ids))))
    highest = max(masses)
    weights = [math.exp(mass - highest) for mass in masses]
    return [weight / sum(weights) for weight in weights]


def test_answers_are_the_models_distribution_over_the_labels() -> None:
    async def main() -> None:
        async with house() as built:
            choices = ("Paris", "Par", "the city of light", "Rome")
            decided = await ask(
                built, Predicate(instructions="Is it so?"), pick(*choices), rate("low", "middle", "high")
            )
            yes, city, level = decided.answers
            assert isinstance(yes, PredicateAnswer)
            by_hand = expected(f"{TEXT}\n\nQuestion: Is it so?\nAnswer:", [" yes\n", " no\n"])
            assert yes.probability == pytest.approx(by_hand[0])
            assert isinstance(city, PickAnswer)
            listed = ", ".join(sorted(choices))
            by_hand = expected(f"{TEXT}\n\nQuestion: Which?\nChoices: {listed}\nAnswer:", [f" {c}\n" for c in choices])
            assert [one.probability for one in city.probabilities] == pytest.approx(by_hand)
            assert city.confidence == pytest.approx(max(by_hand))
            assert city.choice == choices[by_hand.index(max(by_hand))]
            assert isinstance(level, RateAnswer)
            levels = ["low", "middle", "high"]
            prompt = f"{TEXT}\n\nQuestion: How?\nChoices: low, middle, high\nAnswer:"
            by_hand = expected(prompt, [f" {one}\n" for one in levels])
            assert level.score == pytest.approx(by_hand[1] + 2 * by_hand[2])
            assert [one.value for one in level.probabilities] == [0.0, 1.0, 2.0]

    run(main())


def test_probabilities_sum_to_one_whatever_the_labels() -> None:
    async def main() -> None:
        draw = random.Random(5)
        async with house() as built:
            for _ in range(8):
                alphabet = ["a", "b", "ab", " ", "é", "\n", "7", "🦊", "-"]
                labels = {"x" + "".join(draw.choices(alphabet, k=draw.randrange(1, 9))) for _ in range(6)}
                decided = await ask(built, pick(*labels))
                [answer] = decided.answers
                assert isinstance(answer, PickAnswer)
                assert sum(one.probability for one in answer.probabilities) == pytest.approx(1)
                assert all(0 < one.probability < 1 for one in answer.probabilities)

    run(main())


def test_answers_depend_neither_on_neighbours_nor_on_order() -> None:
    async def main() -> None:
        async with house() as built:
            questions = [
                Predicate(instructions="Is it so?"),
                pick("a", "ab", "abc"),
                rate("low", "high"),
                pick(True, False, instructions="Really?"),
            ]
            alone = [(await ask(built, question)).answers[0] for question in questions]
            assert (await ask(built, *questions)).answers == alone
            assert (await ask(built, *reversed(questions))).answers == alone[::-1]
            [turned] = (await ask(built, pick("abc", "a", "ab"))).answers
            assert isinstance(turned, PickAnswer)
            assert isinstance(alone[1], PickAnswer)
            by_value = {one.value: one.probability for one in turned.probabilities}
            assert by_value == {one.value: one.probability for one in alone[1].probabilities}

    run(main())


def test_in_a_chat_a_question_is_the_users_and_the_answer_the_assistants() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            template = TOKENIZER.chat
            assert template is not None
            question = Predicate(instructions="Is it so?")
            for state, operations in enumerate(
                (
                    [RoleBegin("user"), Text(TEXT)],
                    [RoleBegin("user"), Text(TEXT), RoleEnd(), RoleBegin("assistant"), Text("I see."), RoleEnd()],
                )
            ):
                built.core.requests.clear()
                await client.open(state)
                *_, done = await client.play(state, *operations, Decide((question,)))
                assert isinstance(done, Done)
                messages = [{"role": "user", "content": TEXT + ("" if state else "\n\nIs it so?")}]
                if state:
                    messages.append({"role": "assistant", "content": "I see."})
                    messages.append({"role": "user", "content": "Is it so?"})
                prompt = TOKENIZER.encode(template.render(messages, add_generation_prompt=True))
                for request, label in zip(built.core.requests, ("yes", "no"), strict=True):
                    assert request.tokens[: len(prompt)] == prompt
                    assert request.tokens[-1] in TOKENIZER.eos_ids
                    assert TOKENIZER.decode(request.tokens[len(prompt) :]).strip() == label

    run(main())


def test_decide_does_not_change_the_state() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1, 2)
            gen = Gen(sampling=SamplingParams(temperature=0.0, max_new_tokens=4, seed=1))
            await client.play(
                1, RoleBegin("user"), Text(TEXT), Decide((pick("a", "b"),)), Text(" More."), RoleEnd(), gen
            )
            with_question = built.core.requests[-1].tokens
            await client.play(2, RoleBegin("user"), Text(TEXT), Text(" More."), RoleEnd(), gen)
            assert built.core.requests[-1].tokens == with_question

    run(main())


def test_many_questions_are_asked_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_LABELS", 3)

    async def main() -> None:
        async with house() as built:
            questions = [pick("a", "b", "c"), Predicate(instructions="Is it?"), rate("1", "2", "3", "4")]
            decided = await ask(built, *questions)
            assert [type(answer) for answer in decided.answers] == [PickAnswer, PredicateAnswer, RateAnswer]
            assert len(built.core.requests) == 9
            assert decided.prompt_tokens == sum(len(request.tokens) for request in built.core.requests)

    run(main())


@pytest.mark.parametrize(
    ("questions", "param"),
    [
        ([], "questions"),
        ([Predicate(instructions="Is it?")] * 401, "questions"),
        ([Predicate(instructions=" ")], "questions[0].instructions"),
        ([Predicate(instructions="Is it?"), pick("one")], "questions[1].choices"),
        ([pick("a", "a")], "questions[0].choices"),
        ([rate("a", "")], "questions[0].levels"),
    ],
)
def test_an_invalid_question_is_named(questions: list[Question], param: str) -> None:
    async def main() -> None:
        async with house() as built:
            with pytest.raises(RequestError) as caught:
                await ask(built, *questions)
            assert caught.value.param == param
            client = built.client()
            await client.open(1)
            [failed] = await client.play(1, Decide(tuple(questions)))
            assert isinstance(failed, Failed)
            assert built.core.requests == []

    run(main())
