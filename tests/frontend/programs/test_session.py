"""Program states through the wire. Judge: the tokenizer on the whole text, and the model's own formula."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import msgspec
import pytest

from ramiform.runtime.frontend.programs import content, server
from ramiform.runtime.frontend.programs.content import TokenContent
from ramiform.runtime.frontend.text.encoding import PromptSegment
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    ChoicesMethod,
    Close,
    Concatenate,
    Delta,
    Done,
    Failed,
    Fork,
    Gen,
    Lost,
    Malformed,
    Open,
    Operation,
    RoleBegin,
    RoleEnd,
    Select,
    Sync,
    Text,
)
from ramiform.tests.frontend.fake_core import BUSY, logprob
from ramiform.tests.frontend.harness import House, house, run, says, shipped_tokenizer

TOKENIZER = shipped_tokenizer()
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=16)
BOS = [TOKENIZER.bos_id] if TOKENIZER.adds_bos and TOKENIZER.bos_id is not None else []
SPECIAL = next(name for name, token in TOKENIZER.special_ids.items() if token != TOKENIZER.bos_id)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, continues=True)


def text_of(answer: Done | Failed) -> str:
    assert isinstance(answer, Done), answer
    return answer.text


def last_prompt(built: House) -> list[int]:
    return built.core.requests[-1].tokens


def test_text_in_any_pieces_has_the_ids_of_the_whole() -> None:
    async def main() -> None:
        draw = random.Random(3)
        whole = "The quick brown fox: é🦊\n\n  indented, 12345 and done."
        async with house() as built:
            client = built.client()
            for state in range(30):
                cuts = sorted(draw.sample(range(len(whole) + 1), draw.randrange(6)))
                parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
                await client.open(state)
                answers = await client.play(state, *map(Text, parts), Gen(sampling=GREEDY))
                assert [text_of(answer) for answer in answers[:-1]] == parts
                assert last_prompt(built) == BOS + encode(whole)

    run(main())


def test_generated_ids_are_the_next_prompts_prefix() -> None:
    async def main() -> None:
        async with house(says(" fine. And more")) as built:
            client = built.client()
            await client.open(1)
            stop = SamplingParams(temperature=0.0, stop=(" more",))
            await client.play(1, Text("How are"), Text(" you?"), Gen(sampling=stop), Text("\nQ"), Gen(sampling=GREEDY))
            first, second = built.core.requests
            assert second.tokens == first.tokens + encode(" fine. And more")[: -len(encode(" more"))] + encode("\nQ")

    run(main())


def test_a_token_cut_by_a_stop_string_leaves_its_text() -> None:
    async def main() -> None:
        async with house(says(" international")) as built:
            client = built.client()
            await client.open(1)
            stop = SamplingParams(temperature=0.0, stop=("nal",))
            _, gen, _, _ = await client.play(1, Text("An"), Gen(sampling=stop), Text("x"), Gen(sampling=GREEDY))
            assert text_of(gen) == " internatio"
            assert TOKENIZER.decode(last_prompt(built)) == "An internatiox"

    run(main())


def test_deltas_add_up_to_the_answer() -> None:
    async def main() -> None:
        async with house(says(" a long enough answer 🦊.")) as built:
            client = built.client()
            await client.open(1)
            await client.append(1, Text("Q"), Gen(sampling=GREEDY, logprobs=LogprobParams(), stream=True))
            deltas: list[Delta] = []
            while not isinstance(message := await client.receive(), Done) or message.op != 1:
                if isinstance(message, Delta):
                    deltas.append(message)
            assert message.sequences is not None
            [sequence] = message.sequences
            assert "".join(delta.text for delta in deltas) == sequence.text == message.text
            assert [token for delta in deltas for token in delta.ids] == sequence.ids
            assert [value.id for delta in deltas for value in delta.logprobs or []] == sequence.ids

    run(main())


def test_several_samples_are_answered_and_the_first_goes_on() -> None:
    def script(request: Generate) -> list[int]:
        return encode(f" answer {request.sampling.seed}")

    async def main() -> None:
        async with house(script) as built:
            client = built.client()
            await client.open(1)
            sampling = SamplingParams(seed=40, max_new_tokens=16)
            _, gen = await client.play(1, Text("Q"), Gen(sampling=sampling, n=3))
            assert isinstance(gen, Done)
            assert gen.sequences is not None
            assert [sequence.text for sequence in gen.sequences] == [" answer 40", " answer 41", " answer 42"]
            await client.play(1, Gen(sampling=GREEDY))
            assert last_prompt(built) == BOS + encode("Q") + encode(" answer 40")

    run(main())


# Select


def naive_scores(method: ChoicesMethod, prefix: list[int], pending: str, choices: list[str]) -> list[float]:
    encoded = [prefix + encode(pending + choice) for choice in choices]
    every = [prefix + encode(pending), *encoded]
    start = 0
    while all(start < len(ids) and ids[start] == every[0][start] for ids in every):
        start += 1
    rows = [[logprob(ids[:place], ids[place]) for place in range(start, len(ids))] for ids in encoded]
    if method == "token_length_normalized":
        return [sum(row) / len(row) for row in rows]
    bos = [] if TOKENIZER.bos_id is None else [TOKENIZER.bos_id]
    alone = [[logprob(bos + ids[start:place], ids[place]) for place in range(start, len(ids))] for ids in encoded]
    return [
        sum(a - b for a, b in zip(row, prior, strict=True)) / len(row) for row, prior in zip(rows, alone, strict=True)
    ]


@pytest.mark.parametrize("method", ["token_length_normalized", "unconditional_likelihood_normalized"])
def test_a_select_scores_the_tokens_after_the_common_seam(method: ChoicesMethod) -> None:
    async def main() -> None:
        draw = random.Random(5)
        async with house() as built:
            client = built.client()
            for state in range(40):
                pending = draw.choice(["The answer is", "The answer is ", "inter", "x", "Yes"])
                choices = draw.sample(["national", "nation", "n", " yes", " no", "yes", "es, of course", " "], 3)
                await client.open(state)
                _, select = await client.play(state, Text(pending), Select(choices=tuple(choices), method=method))
                assert isinstance(select, Done)
                assert select.choice is not None
                expected = naive_scores(method, BOS, pending, choices)
                assert select.choice.scores == pytest.approx(expected)
                assert select.choice.index == expected.index(max(expected))
                assert select.text == select.choice.text == choices[select.choice.index]
                await client.play(state, Gen(sampling=GREEDY))
                assert last_prompt(built) == BOS + encode(pending + select.text)

    run(main())


def test_choices_may_be_prefixes_of_one_another_and_share_their_values() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            select = Select(choices=(" a", " a b", " a b c"), method="greedy_token_selection", temperature=0.5, seed=7)
            first = (await client.play(1, Text("Q:"), select))[1]
            assert isinstance(first, Done)
            assert first.choice is not None
            short, middle, long = first.choice.token_logprobs
            assert long[: len(middle)] == middle
            assert middle[: len(short)] == short
            assert all(math.isfinite(score) for score in first.choice.scores)
            await client.open(2)
            again = (await client.play(2, Text("Q:"), select))[1]
            assert isinstance(again, Done)
            assert again.choice is not None
            timed = msgspec.structs.replace(again.choice, timings=first.choice.timings)
            assert timed == first.choice

    run(main())


@pytest.mark.parametrize(
    ("select", "message"),
    [
        (Select(choices=()), "choices"),
        (Select(choices=("a", "")), "non-empty"),
        (Select(choices=("a",), temperature=-1.0), "temperature"),
        (Select(choices=("a",), temperature=math.nan), "temperature"),
    ],
)
def test_a_senseless_select_is_the_clients_mistake(select: Select, message: str) -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            _, answer = await client.play(1, Text("Q"), select)
            assert isinstance(answer, Failed)
            assert answer.error.kind == "request"
            assert message in answer.error.message

    run(main())


# Roles


def test_what_a_role_holds_cannot_name_special_tokens() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(
                1,
                RoleBegin("user"),
                Text("say " + SPECIAL[:3]),
                Text(SPECIAL[3:]),
                RoleEnd(),
                RoleBegin("assistant"),
                Gen(sampling=GREEDY),
            )
            assert TOKENIZER.chat is not None
            plain = TOKENIZER.chat.render([{"role": "user", "content": "say "}], add_generation_prompt=True)
            special = set(TOKENIZER.special_ids.values())
            expected = [token for token in TOKENIZER.encode(plain) if token in special]
            assert [token for token in last_prompt(built) if token in special] == expected
            await client.open(2)
            await client.play(2, Text("say " + SPECIAL), Gen(sampling=GREEDY))
            assert last_prompt(built)[-1] == TOKENIZER.special_ids[SPECIAL]

    run(main())


def test_a_conversation_with_generated_answers_reads_like_the_whole_template() -> None:
    async def main() -> None:
        async with house(says("Paris")) as built:
            client = built.client()
            await client.open(1)
            turn = (RoleBegin("assistant"), Gen(sampling=GREEDY), RoleEnd())
            answers = await client.play(
                1, RoleBegin("user"), Text("Capital?"), RoleEnd(), *turn, RoleBegin("user"), Text("Sure?"), RoleEnd()
            )
            answers += await client.play(1, *turn)
            assert TOKENIZER.chat is not None
            messages = [("user", "Capital?"), ("assistant", "Paris"), ("user", "Sure?"), ("assistant", "Paris")]
            whole = TOKENIZER.chat.render([{"role": role, "content": content} for role, content in messages])
            assert "".join(map(text_of, answers)) == whole
            assert last_prompt(built) == TOKENIZER.encode(whole)[: len(last_prompt(built))]

    run(main())


# Forks


def test_forks_go_on_from_the_same_ids_and_join_with_what_they_did() -> None:
    def script(request: Generate) -> list[int]:
        return encode(" left") if request.tokens[-len(encode(" 1:")) :] == encode(" 1:") else encode(" right")

    async def main() -> None:
        async with house(script) as built:
            client = built.client()
            await client.open(0)
            await client.append(0, Text("Root"), Fork((1, 2)), Text(" main"))
            for child in (1, 2):
                await client.append(child, Text(f" {child}:"), Gen(sampling=GREEDY), Text("\n"))
            await client.append(0, Concatenate((1, 2)), Gen(sampling=GREEDY))
            await client.append(1, Text("too late"))
            answers = await client.answers(12)
            assert text_of(answers[0, 3]) == " 1: left\n 2: right\n"
            expected = (
                BOS + encode("Root main 1:") + encode(" left") + encode("\n 2:") + encode(" right") + encode("\n")
            )
            assert last_prompt(built) == expected
            for request in built.core.requests[:2]:
                assert request.tokens[: len(BOS + encode("Root"))] == BOS + encode("Root")

    run(main())


def test_a_joined_fork_gives_the_ids_that_doing_it_oneself_gives() -> None:
    async def main() -> None:
        async with house(says(" yes, inter")) as built:
            client = built.client()
            operations = [
                RoleBegin("user"),
                Text("A"),
                RoleEnd(),
                RoleBegin("assistant"),
                Gen(sampling=GREEDY),
                Text("nation"),
                Select(choices=("al", "alism")),
                Text(", B"),
                RoleEnd(),
            ]
            await client.open(0, 9)
            await client.play(9, Text("Start "), *operations, RoleBegin("user"), Gen(sampling=GREEDY))
            alone = last_prompt(built)
            await client.append(0, Text("Start "), Fork((1,)))
            await client.append(1, Fork((2,)))
            await client.append(2, *operations)
            await client.append(1, Concatenate((2,)))
            await client.append(0, Concatenate((1,)), RoleBegin("user"), Gen(sampling=GREEDY))
            await client.send(Close((1, 2)))  # as soon as a program has joined its forks it lets go of them
            while (0, 4) not in (await client.answers(1)):
                pass
            assert last_prompt(built) == alone

    run(main())


def test_a_fork_of_a_closed_state_lives_on() -> None:
    async def main() -> None:
        async with house(says(" ok")) as built:
            client = built.client()
            await client.open(0)
            await client.append(0, Text("a"), Gen(sampling=GREEDY), Fork((1,)), Gen(sampling=GREEDY))
            await client.send(Close((0,)))
            await client.append(1, Gen(sampling=GREEDY))
            while (1, 0) not in (await client.answers(1)):
                pass
            assert last_prompt(built) == BOS + encode("a") + encode(" ok")
            assert len(built.core.requests) == 2

    run(main())


def test_roles_left_open_by_a_fork_cannot_be_joined() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(0)
            await client.append(0, Text("a"), Fork((1,)))
            await client.append(1, RoleBegin("user"))
            await client.append(0, Concatenate((1,)))
            answers = await client.answers(4)
            failed = answers[0, 2]
            assert isinstance(failed, Failed)
            assert "while its role 'user' is open" in failed.error.message

    run(main())


# Failures


def test_after_a_failure_everything_of_the_state_and_its_forks_fails_alike() -> None:
    async def main() -> None:
        async with house(lambda request: BUSY) as built:
            client = built.client()
            await client.open(0, 5)
            await client.append(0, Text("a"), Gen(sampling=GREEDY), Text("b"), Fork((1,)), Sync())
            await client.append(1, Text("c"), Fork((2,)))
            await client.append(2, Sync())
            await client.append(0, Concatenate((1,)))
            answers = await client.answers(9)
            failed = {key: answer.error for key, answer in answers.items() if isinstance(answer, Failed)}
            assert set(answers) - set(failed) == {(0, 0)}
            assert set(failed.values()) == {ErrorInfo(kind="busy", message="too many requests wait")}
            [other] = await client.play(5, Text("unharmed"))
            assert text_of(other) == "unharmed"

    run(main())


def test_wrong_operations_are_answered_never_ignored() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(0, 7)
            await client.append(99, Text("a"), Sync())
            answers = await client.answers(2)
            assert all(
                "no such state" in answer.error.message for answer in answers.values() if isinstance(answer, Failed)
            )
            assert all(isinstance(answer, Failed) for answer in answers.values())
            wrong: list[tuple[Operation, str]] = [
                (Fork((7,)), "must be new"),
                (Fork((8, 8)), "must be new"),
                (Concatenate((7,)), "not a fork"),
                (Concatenate((1234,)), "not a fork"),
                (RoleEnd(), "none is open"),
                (Gen(sampling=GREEDY, n=0), "n must be"),
            ]
            for state, (operation, message) in enumerate(wrong, start=100):
                await client.open(state)
                bad, after = await client.play(state, operation, Text("b"))
                assert isinstance(bad, Failed)
                assert isinstance(after, Failed)
                assert message in bad.error.message
                assert after.error == bad.error
            await client.send(Open(0, 0))
            assert isinstance(await client.receive(), Malformed)
            await client.send(Append(0, 5, [Text("misnumbered")]))
            assert isinstance((await client.answers(1))[0, 5], Failed)

    run(main())


def test_with_its_last_state_all_of_a_program_ends() -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            client = built.client()
            await client.open(0)
            await client.append(0, Text("a"), Gen(sampling=GREEDY), Fork((1,)))
            await client.append(1, Gen(sampling=GREEDY))
            await built.core.until(lambda: len(built.core.requests) == 1)
            await client.send(Close((0, 1)))  # the fork was all that state 0 would have gone on for
            await built.core.until(lambda: built.core.aborted == [built.core.requests[0].rid])

    run(main())


def test_a_client_has_a_bounded_number_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CLIENT_STATES", 3)

    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(0, 1)
            [refused] = await client.play(0, Fork((2, 3)))
            assert isinstance(refused, Failed)
            assert refused.error.kind == "busy"
            await client.open(2, 3)
            message = await client.receive()
            assert isinstance(message, Lost)
            assert message.states == (3,)
            assert message.error.kind == "busy"
            await client.send(Close((0,)))
            await client.open(3)
            assert isinstance((await client.play(3, Sync()))[0], Done)

    run(main())


def test_the_work_of_nested_forks_and_joins_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operations on texts are counted: those of twice as many levels are twice as many."""
    num_appended = num_merged = 0
    append, merge = TokenContent._append, content.merge_segments

    def counted_append(self: TokenContent, segment: PromptSegment) -> None:
        nonlocal num_appended
        num_appended += 1
        append(self, segment)

    def counted_merge(segments: Iterable[PromptSegment]) -> list[PromptSegment]:
        nonlocal num_merged
        segments = list(segments)
        num_merged += len(segments)
        return merge(segments)

    monkeypatch.setattr(TokenContent, "_append", counted_append)
    monkeypatch.setattr(content, "merge_segments", counted_merge)

    async def nested(num_levels: int) -> int:
        nonlocal num_appended, num_merged
        num_appended = num_merged = 0
        async with house() as built:
            client = built.client()
            await client.open(1)
            levels = range(1, num_levels)
            await client.send(*(Append(n, 0, [Text(f"{n} "), Fork((n + 1,))]) for n in levels))
            await client.send(Append(num_levels, 0, [Text("end"), Sync()]))
            await client.send(*(Append(n, 2, [Concatenate((n + 1,)), Sync()]) for n in reversed(levels)))
            answers = await client.answers(4 * num_levels - 2)
            joined = answers[1, 2]
            assert isinstance(joined, Done)
            assert joined.text == "".join(f"{n} " for n in range(2, num_levels)) + "end"
        return num_appended + num_merged

    async def main() -> None:
        assert await nested(80) <= 2 * await nested(40) + 10

    run(main())
