"""Whole programs in one message, what the client supplies in the middle of one, and budgets that end them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramiform.runtime.frontend.programs import server
from ramiform.runtime.programs.interpreter import ProgramInterpreter
from ramiform.runtime.protocol.core import ProgramProgress
from ramiform.runtime.protocol.errors import ErrorInfo
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.runtime.protocol.session import (
    Append,
    Ask,
    Budget,
    Close,
    Concatenate,
    Done,
    Failed,
    Fork,
    Gen,
    Lost,
    Open,
    Play,
    Select,
    Supply,
    Sync,
    Text,
)
from ramiform.tests.frontend.harness import House, house, run, says, shipped_tokenizer

SAMPLING = SamplingParams(temperature=0.0, max_new_tokens=8, seed=1)
GEN = Gen(sampling=SAMPLING)


def encode(text: str) -> list[int]:
    return shipped_tokenizer().encode(text, continues=True)


class Timer:
    """Replaces the event loop's timer; the test calls `expire`."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.expire: Callable[[], None] | None = None  # None: not set, or cancelled

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        self.seconds, self.expire = seconds, callback
        return self

    def cancel(self) -> None:
        self.expire = None


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    timer = Timer()

    def make(send: Any, open_executor: Any, call_later: Any, **options: Any) -> ProgramInterpreter:
        return ProgramInterpreter(send, open_executor, timer.call_later, **options)

    monkeypatch.setattr(server, "ProgramInterpreter", make)
    return timer


async def answered(built: House) -> None:
    """Everything that is on its way to the core has arrived."""
    await built.frontend._generator.core.stats()


def test_a_program_in_one_message_is_answered_as_one_sent_in_pieces() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            parts = [
                Append(1, 0, [Text("Hello"), GEN, Fork((2, 3))]),
                Append(2, 0, [Text(" a"), GEN]),
                Append(3, 0, [Text(" b"), GEN]),
                Append(1, 3, [Concatenate((2, 3)), GEN]),
            ]
            await client.send(Play([Open(1, 1), *parts], complete=True))
            whole = await client.answers(9)
            other = built.client()
            await other.send(Open(1, 1), *parts)
            pieces = await other.answers(9)
            assert {key: answer.text for key, answer in whole.items()} == {k: a.text for k, a in pieces.items()}
            ours, theirs = built.core.requests[:4], built.core.requests[4:]
            assert sorted(request.tokens for request in ours) == sorted(request.tokens for request in theirs)

    run(main())


def test_requests_carry_the_progress_of_their_program() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.send(
                Play(
                    [
                        Open(1, 1),
                        Append(1, 0, [Text("Hello"), GEN, Fork((2, 3, 4)), GEN]),
                        *(Append(state, 0, [Text("x"), GEN]) for state in (2, 3, 4)),
                    ],
                    complete=True,
                )
            )
            await client.answers(10)
            first, *others = [request.progress for request in built.core.requests]
            assert first == ProgramProgress(4, 1, True)
            assert max(progress.num_generations for progress in others if progress) == 3
            assert sorted(progress.width for progress in others if progress) == [1, 3, 3, 3]
            await client.send(Open(9, 9), Append(9, 0, [Text("piece by piece"), GEN]))
            await client.answers(2)
            assert built.core.requests[-1].progress == ProgramProgress(0, 1, False)

    run(main())


def test_a_complete_program_pins_no_prefix_that_it_will_not_reuse() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.send(Play([Open(1, 1), Append(1, 0, [Text("Hello"), GEN, Text("more"), GEN])], complete=True))
            await client.answers(4)
            first, last = built.core.requests
            assert [pin.state for pin in first.soft_pins] == [1]
            assert last.soft_pins == []
            await answered(built)
            assert [(ended.program, ended.states) for ended in built.core.ended] == [(last.program, [1])]
            # It goes on after all: from here on it is as one said piece by piece.
            await client.send(Append(1, 4, [Text("again"), GEN]))
            await client.answers(2)
            assert [pin.state for pin in built.core.requests[-1].soft_pins] == [1]

    run(main())


def test_an_ask_waits_for_what_the_client_supplies() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.append(1, Text("Call:"), GEN, Ask(), Text("!"), GEN)
            await client.answers(2)
            await client.send(Supply(state=1, op=2, text=" supplied"))
            answers = await client.answers(3)
            assert answers[1, 2] == Done(1, 2, " supplied")
            assert built.core.requests[-1].tokens[-len(encode(" supplied!")) :] == encode(" supplied!")

    run(main())


def test_what_is_supplied_may_be_an_error_and_comes_once() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1, 2)
            error = ErrorInfo(kind="request", message="the tool failed", code="tool_failed")
            await client.append(1, Ask(), Text("after"))
            await client.send(Supply(state=1, op=0, error=error), Supply(state=1, op=0, text="late"))
            await client.send(Supply(state=1, op=7, text="nobody asked"), Supply(state=77, op=0, text="nobody there"))
            assert set((await client.answers(2)).values()) == {Failed(1, 0, error), Failed(1, 1, error)}
            [done] = await client.play(2, Sync())
            assert isinstance(done, Done)

    run(main())


def test_a_choice_that_the_client_makes_is_tokenised_as_it_was_scored() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1, 2)
            choices = ("lightning", "light")
            await client.append(
                1, Text("The "), Select(choices=choices, append=False), Ask(chosen=True), Text("house"), GEN
            )
            scored = (await client.answers(2))[1, 1]
            assert isinstance(scored, Done)
            assert scored.text == ""
            assert scored.choice is not None
            await client.send(Supply(state=1, op=2, text="light"))
            await client.answers(3)
            ours = built.core.requests[-1].tokens
            await client.play(2, Text("The "), Select(choices=("light",)), Text("house"), GEN)
            assert ours == built.core.requests[-1].tokens

    run(main())


def test_a_join_of_a_state_that_is_closed_at_an_ask_fails() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.append(1, Fork((2,)))
            await client.append(2, Ask(), Text("x"))
            await client.append(1, Concatenate((2,)))
            await client.send(Close((2,)))
            answers = await client.answers(2)
            assert isinstance(answers[1, 1], Failed)

    run(main())


def test_closing_a_program_closes_all_its_states_and_frees_what_they_run() -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            client = built.client()
            await client.send(Open(1, 7), Append(1, 0, [Text("a"), Fork((2, 3))]), Open(9, 8))
            await client.send(*(Append(state, op, [GEN]) for state, op in ((1, 2), (2, 0), (3, 0), (9, 0))))
            await built.core.until(lambda: len(built.core.requests) == 4)
            await client.send(Close((), (7,)))
            await built.core.until(lambda: len(built.core.aborted) == 3)
            [interpreter] = [one.interpreter for one in built.frontend._program_server._clients.values()]
            assert interpreter.num_states == 1
            assert [ended.states for ended in built.core.ended] == [None]

    run(main())


def test_a_program_whose_time_is_up_is_lost_and_named_and_others_go_on(timer: Timer) -> None:
    async def main() -> None:
        async with house(lambda request: None) as built:
            client = built.client()
            await client.send(Open(1, 1, Budget(seconds=0.05)), Open(2, 2))
            await client.append(1, Text("a"), Fork((3,)), GEN)
            await client.append(3, GEN)
            await client.answers(2)
            await built.core.until(lambda: len(built.core.requests) == 2)
            assert timer.seconds == 0.05
            assert timer.expire is not None
            timer.expire()
            lost = await client.receive()
            assert isinstance(lost, Lost)
            assert set(lost.states) == {1, 3}
            assert (lost.error.param, lost.error.code) == ("timeout", "timeout")
            assert "0.05 s" in lost.error.message
            await built.core.until(lambda: len(built.core.aborted) == 2)
            [done] = await client.play(2, Sync())
            assert isinstance(done, Done)

    run(main())


def test_a_program_that_ends_in_time_is_not_lost_later(timer: Timer) -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.send(Open(1, 1, Budget(seconds=0.01)))
            await client.send(Close((1,)))
            await client.open(2)
            [done] = await client.play(2, Sync())
            assert isinstance(done, Done)
            assert timer.seconds == 0.01
            assert timer.expire is None

    run(main())


def test_a_program_that_has_spent_its_tokens_is_lost_and_named() -> None:
    async def main() -> None:
        output = encode(" one two three four five six seven eight nine ten")
        async with house(lambda request: output) as built:
            client = built.client()
            long = Gen(sampling=SamplingParams(temperature=0.0, max_new_tokens=100, seed=1))
            num = len(output) + 1  # what the fake puts out, its last token included
            await client.send(Open(1, 1, Budget(tokens=2 * num)), Open(2, 2, Budget(tokens=num + 1)))
            answers = await client.play(1, Text("a"), long, long)
            assert all(isinstance(answer, Done) for answer in answers)
            await client.append(2, Text("a"), long, long, Text("never"))
            assert len(await client.answers(2)) == 2
            lost = await client.receive()
            assert isinstance(lost, Lost)
            assert lost.states == (2,)
            assert lost.error.code == "token_budget_exceeded"
            assert f"{num + 1} generated tokens" in lost.error.message
            assert built.core.requests[-1].sampling.max_new_tokens == 1

    run(main())


def test_branches_spend_one_budget_together() -> None:
    async def main() -> None:
        async with house(says(" one two three four five six")) as built:
            client = built.client()
            await client.send(Open(1, 1, Budget(tokens=10)))
            await client.append(1, Fork((2, 3, 4)))
            for state in (2, 3, 4):
                await client.append(state, Text("a"), GEN)
            while not isinstance(message := await client.receive(), Lost):
                assert isinstance(message, Done)
            assert set(message.states) == {1, 2, 3, 4}
            assert message.error.param == "max_total_tokens"

    run(main())


def test_token_texts_of_log_probabilities_are_returned_on_request() -> None:
    async def main() -> None:
        async with house(says(" fine.")) as built:
            client = built.client()
            await client.open(1)
            logprobs = LogprobParams(prompt_from=1)
            gen = Gen(sampling=SAMPLING, logprobs=logprobs, token_texts=True)
            _, done = await client.play(1, Text("Hello there"), gen)
            assert isinstance(done, Done)
            assert done.sequences is not None
            [sequence] = done.sequences
            assert sequence.token_texts is not None
            assert "".join(sequence.token_texts[token] for token in sequence.ids) == " fine."
            named = {entry.id for entry in sequence.prompt_logprobs or [] if entry}
            assert named <= set(sequence.token_texts)

    run(main())


def test_answers_of_one_moment_travel_together() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.append(1, *[Text(str(number)) for number in range(100)])
            first = await client.receive()
            assert first == Done(1, 0, "0")
            assert len(client._received) == 99  # nothing more had to be read from the socket

    run(main())
