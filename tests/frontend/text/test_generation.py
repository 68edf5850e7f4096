"""Judge: str.find on the whole text."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from ramiform.runtime.frontend.text import generation
from ramiform.runtime.frontend.text.generation import FinishedSample, Generator, Piece, Prompt
from ramiform.runtime.protocol import wire
from ramiform.runtime.protocol.core import Finish, Generate, RequestOptions
from ramiform.runtime.protocol.errors import BusyError, RequestError
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams, TokenLogprob
from ramiform.tests.frontend.fake_core import BUSY, entries, logprob
from ramiform.tests.frontend.harness import House, house, run, says, shipped_tokenizer

TOKENIZER = shipped_tokenizer()
EOS = TOKENIZER.eos_ids[0]
TEXT = 'Ünïcode 🦊🦊 and {"json": [1, 2]}\n\nThe capital of France is Paris. The end.'


def generator(built: House) -> Generator:
    return built.frontend._generator


async def finish(
    built: House, *, logprobs: LogprobParams | None = None, **params: Any
) -> tuple[list[Piece], FinishedSample]:
    sampling = SamplingParams(temperature=0.0, **params)
    with generator(built).start(
        Prompt(tokens=[1, 2, 3], sampling=sampling, options=RequestOptions(logprobs=logprobs))
    ) as samples:
        pieces = [piece async for piece in samples[0]]
        return pieces, await samples[0].result()


@pytest.mark.slow
def test_a_stop_string_cuts_the_text_where_find_says() -> None:
    async def main() -> None:
        draw = random.Random(1)
        async with house(says(TEXT)) as built:
            whole = TOKENIZER.encode(TEXT, continues=True)
            for _ in range(150):
                start = draw.randrange(len(TEXT))
                stops = [TEXT[start : start + draw.randrange(1, 12)], "not there", "The Ind"]
                pieces, generated = await finish(built, stop=tuple(stops))
                sequence = generated.sequence
                at = TEXT.find(stops[0])
                assert sequence.text == TEXT[:at]
                assert sequence.finish == Finish("stop", stops[0])
                assert sequence.ids == whole[: len(sequence.ids)]
                assert TOKENIZER.decode(sequence.ids) + generated.leftover == sequence.text
                assert generated.output_ids == whole[: sequence.completion_tokens]
                assert "".join(piece.text for piece in pieces) == sequence.text
                assert [token for piece in pieces for token in piece.ids] == sequence.ids

    run(main())


@pytest.mark.parametrize("pattern", ["[🦊é]+ ", '"[a-z]+"', "(?s)json.*France", "[A-Z][^a-z]*[a-z]{4,}", "[^x]{30}"])
def test_a_stop_pattern_cuts_the_text_and_nothing_of_its_match_is_sent(pattern: str) -> None:
    spans = [(end, start) for end in range(len(TEXT) + 1) for start in range(end)]
    end, start = next(span for span in spans if re.fullmatch(pattern, TEXT[span[1] : span[0]]))

    async def main() -> None:
        whole = TOKENIZER.encode(TEXT, continues=True)
        async with house(says(TEXT)) as built:
            pieces, generated = await finish(built, stop_regex=("not there", pattern), stop=("The end",))
            sequence = generated.sequence
            assert sequence.text == TEXT[:start]
            assert sequence.finish == Finish("stop", TEXT[start:end])
            assert sequence.ids == whole[: len(sequence.ids)]
            assert TOKENIZER.decode(sequence.ids) + generated.leftover == sequence.text
            assert "".join(piece.text for piece in pieces) == sequence.text
            assert [token for piece in pieces for token in piece.ids] == sequence.ids
            _, kept = await finish(built, stop_regex=(pattern,), no_stop_trim=True)
            assert kept.sequence.text.startswith(TEXT[:end])

    run(main())


def test_a_bad_stop_pattern_is_refused_before_anything_is_submitted() -> None:
    async def main() -> None:
        async with house() as built:
            with pytest.raises(RequestError, match=re.escape("'a*'")) as caught:
                await finish(built, stop_regex=("a*",))
            assert caught.value.param == "stop_regex"
            assert not built.core.requests

    run(main())


def test_a_stop_pattern_whose_libraries_find_no_memory_may_be_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(patterns: tuple[str, ...]) -> None:
        raise OSError("failed to map segment from shared object")

    async def main() -> None:
        async with house(says(TEXT)) as built:
            with monkeypatch.context() as patch:
                patch.setattr(generation, "search", no_memory)
                with pytest.raises(BusyError, match="stop_regex: failed to map"):
                    await finish(built, stop_regex=("[a-z]{4}",))
            _, generated = await finish(built, stop_regex=("[a-z]{4}",))
            assert generated.sequence.text

    run(main())


def test_pieces_never_hold_half_a_character_nor_run_ahead_of_their_text() -> None:
    async def main() -> None:
        async with house(says(TEXT)) as built:
            pieces, _ = await finish(built, stop=("The end",))
            text = ""
            ids: list[int] = []
            for piece in pieces:
                text, ids = text + piece.text, ids + piece.ids
                assert "\ufffd" not in piece.text
                assert text.startswith(TOKENIZER.decode(ids))

    run(main())


def test_a_stop_token_ends_the_text_before_it_and_counts() -> None:
    async def main() -> None:
        ids = TOKENIZER.encode(TEXT, continues=True)
        async with house(says(TEXT)) as built:
            _, generated = await finish(built, stop_token_ids=(ids[9],), logprobs=LogprobParams())
            end = ids.index(ids[9])
            assert generated.sequence.ids == ids[:end]
            assert generated.sequence.text == TOKENIZER.decode(ids[:end])
            assert generated.sequence.completion_tokens == end + 1
            assert generated.sequence.finish == Finish("stop", ids[9])
            assert [value.id for value in generated.sequence.logprobs or []] == ids[: end + 1]
            _, generated = await finish(built)
            assert (generated.sequence.text, generated.sequence.ids) == (TEXT, ids)
            assert generated.sequence.finish == Finish("stop", EOS)

    run(main())


def test_an_untrimmed_output_keeps_its_stop() -> None:
    async def main() -> None:
        ids = TOKENIZER.encode(TEXT, continues=True)
        async with house(says(TEXT)) as built:
            _, generated = await finish(built, stop=("json",), no_stop_trim=True)
            assert generated.sequence.text.startswith(TEXT[: TEXT.find("json") + 4])
            assert generated.sequence.text == TOKENIZER.decode(generated.sequence.ids)
            _, generated = await finish(built, no_stop_trim=True, skip_special_tokens=False)
            assert generated.sequence.ids == [*ids, EOS]
            assert generated.sequence.text == TOKENIZER.decode([*ids, EOS], skip_special_tokens=False)

    run(main())


def test_logprobs_are_those_of_the_core() -> None:
    async def main() -> None:
        ids = TOKENIZER.encode(TEXT, continues=True)
        async with house(says(TEXT)) as built:
            _, generated = await finish(built, max_new_tokens=5, logprobs=LogprobParams(prompt_from=0))
            assert generated.sequence.finish == Finish("length")
            assert generated.sequence.prompt_logprobs == entries([1, 2, 3], 0)
            expected = [TokenLogprob(logprob([1, 2, 3, *ids[:place]], ids[place]), ids[place]) for place in range(5)]
            assert generated.sequence.logprobs == expected
            pieces, _ = await finish(built, max_new_tokens=5, logprobs=LogprobParams())
            assert [value for piece in pieces for value in piece.logprobs or []] == expected

    run(main())


def test_samples_have_seeds_in_a_row_and_a_missing_seed_is_drawn() -> None:
    async def main() -> None:
        async with house() as built:
            for seed in (5, None, (1 << 63) - 2):
                built.core.requests.clear()
                sampling = SamplingParams(seed=seed)
                with generator(built).start(Prompt(tokens=[1], sampling=sampling), 4) as samples:
                    for sample in samples:
                        await sample.result()
                seeds = [request.sampling.seed for request in built.core.requests]
                assert None not in seeds
                first = seeds[0] if seed is None else seed
                assert first is not None
                assert [(own - first) % (1 << 64) for own in seeds if own is not None] == [0, 1, 2, 3]
                assert len({request.rid for request in built.core.requests}) == 4
            with pytest.raises(RequestError, match="n must be"):
                generator(built).start(Prompt(tokens=[1], sampling=SamplingParams()), 0)

    run(main())


def test_leaving_the_block_aborts_what_runs_and_only_that() -> None:
    def script(request: Generate) -> list[int] | None:
        return None if request.sampling.seed == 1 else [5]

    async def main() -> None:
        async with house(script) as built:
            with generator(built).start(Prompt(tokens=[1], sampling=SamplingParams(seed=0)), 2) as samples:
                await samples[0].result()
            await built.core.until(lambda: bool(built.core.aborted))
            assert built.core.aborted == [built.core.requests[1].rid]

    run(main())


def test_an_error_of_the_core_is_raised_as_what_it_is() -> None:
    async def main() -> None:
        async with house(lambda request: BUSY) as built:
            with pytest.raises(type(BUSY), match="too many"):
                await finish(built)

    run(main())


def test_a_prompt_beyond_the_context_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        async with house() as built:
            prompt = Prompt(tokens=[70_000] * (wire.MAX_MESSAGE_BYTES // 5 + 1), sampling=SamplingParams())
            with pytest.raises(RequestError, match="maximum context length is 2048 tokens") as caught:
                generator(built).start(prompt)
            assert caught.value.code == "context_length_exceeded"
            assert not built.core.requests
            assert (await finish(built))[1].sequence.text == " fine."

    run(main())
