"""Soft pins that the frontend sends to the core. Judge: the requests that the states make afterwards."""

from __future__ import annotations

from ramiform.runtime.protocol.core import EndStates, Generate, SoftPin
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.session import Close, Fork, Gen, Open, Select, Sync, Text
from ramiform.tests.frontend.harness import House, house, run, says, shipped_tokenizer

TOKENIZER = shipped_tokenizer()
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=16)
PREFIX = "A prefix of several words that everybody shares, and then some."


def last(built: House) -> Generate:
    return built.core.requests[-1]


def length(text: str) -> int:
    return len(TOKENIZER.encode(text, add_bos=True))


def prefix_length() -> int:
    return length(PREFIX)


def test_a_state_pins_all_its_tokens_after_each_generation() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text("One"), Gen(sampling=GREEDY), Text(" two"), Gen(sampling=GREEDY))
            assert [request.soft_pins for request in built.core.requests] == [[SoftPin(1)], [SoftPin(1)]]

    run(main())


def test_ids_that_the_tokenizer_does_not_have_are_pinned_too() -> None:
    """Generate an id of the padding that a model's vocabulary may have, then fork and generate."""

    async def main() -> None:
        unknown = TOKENIZER.vocab_size + 3
        async with house(lambda request: [unknown]) as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text("One"), Gen(sampling=GREEDY), Fork((2,)))
            await client.play(2, Text(" two"), Gen(sampling=GREEDY))
            assert unknown in last(built).tokens
            assert last(built).soft_pins

    run(main())


def test_only_the_first_of_several_samples_is_pinned() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text("One"), Gen(sampling=SamplingParams(seed=1, max_new_tokens=4), n=3))
            assert [request.soft_pins for request in built.core.requests] == [[SoftPin(1)], [], []]

    run(main())


def test_a_fork_that_generates_first_pins_its_parents_prefix() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text(PREFIX), Fork(children=(2, 3)))
            await client.play(2, Text(" Mine."), Gen(sampling=GREEDY))
            own, parents = sorted(last(built).soft_pins, key=lambda pin: pin.num_tokens is not None)
            assert own == SoftPin(2)
            assert parents == SoftPin(1, prefix_length())
            # The parent goes on with these very tokens.
            await client.play(1, Gen(sampling=GREEDY))
            assert last(built).tokens == built.core.requests[0].tokens[: prefix_length()]
            # Said once, and for itself from now on.
            await client.play(2, Text(" More."), Gen(sampling=GREEDY))
            assert last(built).soft_pins == [SoftPin(2)]
            await client.play(3, Text(" Also."), Gen(sampling=GREEDY))
            assert last(built).soft_pins == [SoftPin(3)]

    run(main())


def test_forks_of_forks_pin_for_every_ancestor_that_has_not_moved_on() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text(PREFIX), Fork(children=(2,)))
            await client.play(2, Text(" Middle words."), Fork(children=(3,)))
            await client.play(3, Text(" End."), Gen(sampling=GREEDY))
            soft_pins = {pin.state: pin.num_tokens for pin in last(built).soft_pins}
            assert soft_pins[1] == prefix_length()
            middle = length(PREFIX + " Middle words.")
            assert soft_pins == {1: prefix_length(), 2: middle, 3: None}

    run(main())


def test_an_ancestor_that_is_closed_or_has_moved_on_is_not_pinned() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text(PREFIX), Fork(children=(2, 3)))
            await client.play(1, Text(" Something new."))
            await client.play(2, Gen(sampling=GREEDY))
            assert last(built).soft_pins == [SoftPin(2)]
            await client.open(4)
            await client.play(4, Text(PREFIX), Fork(children=(5,)))
            await client.send(Close([4]))
            await client.play(5, Gen(sampling=GREEDY))
            assert last(built).soft_pins == [SoftPin(5)]

    run(main())


def test_a_select_pins_the_text_before_the_choices() -> None:
    async def main() -> None:
        async with house() as built:
            client = built.client()
            await client.open(1)
            await client.play(1, Text("Yes or no?"), Select(choices=(" yes", " no")))
            first, second = built.core.requests
            shared = length("Yes or no?")
            assert first.soft_pins == [SoftPin(1, shared)]
            assert second.soft_pins == []

    run(main())


def test_the_core_is_notified_when_states_and_programs_end() -> None:
    async def main() -> None:
        async with house(says(" x")) as built:
            client = built.client()
            await client.send(Open(1, 7), Open(2, 7), Open(3, 8))
            await client.play(1, Text("a"), Gen(sampling=GREEDY))
            program = last(built).program
            assert program is not None
            await client.play(3, Text("a"), Gen(sampling=GREEDY))
            other = last(built).program
            assert other not in (None, program)
            await client.send(Close([1]))
            await client.play(2, Sync())
            await client.send(Close([2]))
            await client.play(3, Sync())
            await built.core.until(lambda: len(built.core.ended) == 2)
            assert built.core.ended == [EndStates(program, [1]), EndStates(program, None)]
            # A client that goes takes its programs along.
            built.frontend._program_server.forget_silent(float("inf"))
            await built.core.until(lambda: len(built.core.ended) == 3)
            assert built.core.ended[2] == EndStates(other, None)  # type: ignore[arg-type]

    run(main())
