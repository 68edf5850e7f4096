"""A Gen played: its samples read as they come, counted against the program's budget, and told what their tokens say.

Knows one operation; nothing of states or clients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ...protocol.sampling import SamplingParams
from ...protocol.session import Gen, Sequence
from ..text.generation import FinishedSample, Generator, Piece, Prompt, SampleStream
from ..text.scoring import RequestContext
from .running_program import RunningProgram


@dataclass(frozen=True)
class GenResult:
    """One sequence a sample. `leftover` is the text that the first one's ids lack, because a stop cut a token."""

    sequences: list[Sequence]
    leftover: str


async def generate(
    generator: Generator,
    program: RunningProgram,
    op: Gen,
    tokens: list[int],
    asker: RequestContext,
    on_piece: Callable[[Piece], None],
) -> GenResult:
    """Continue `tokens`; `on_piece` hears of the first sample as it comes, when the operation streams.

    Raises RamiformError when the request fails, or the program's budget is spent.
    """
    sampling = program.afford(op.sampling, op.n)
    prompt = Prompt(
        tokens=tokens,
        sampling=sampling,
        logprobs=op.logprobs,
        program=asker.program,
        claims=asker.claims,
        outlook=asker.outlook,
        in_bulk=not op.stream and not program.has_token_budget,  # which is spent token by token
    )
    with generator.start(prompt, op.n) as samples:
        results = [
            await _read(program, sample, op, sampling, on_piece if op.stream and index == 0 else _ignore)
            for index, sample in enumerate(samples)
        ]
    sequences = [result.sequence for result in results]
    if op.token_texts:
        sequences = [_with_texts(generator, sequence) for sequence in sequences]
    return GenResult(sequences, results[0].leftover)


async def _read(
    program: RunningProgram, sample: SampleStream, op: Gen, sampling: SamplingParams, on_piece: Callable[[Piece], None]
) -> FinishedSample:
    num_counted = 0
    async for piece in sample:
        program.spend(len(sample.output_ids) - num_counted)
        num_counted = len(sample.output_ids)
        on_piece(piece)
    assert sample.generated is not None
    was_cut = len(sample.output_ids) == sampling.max_new_tokens < op.sampling.max_new_tokens
    if was_cut and sample.generated.sequence.finish.type == "length":
        raise program.exhaust()
    return sample.generated


def _with_texts(generator: Generator, sequence: Sequence) -> Sequence:
    entries = [entry for entry in (*(sequence.logprobs or ()), *(sequence.prompt_logprobs or ())) if entry]
    ids = {entry.id for entry in entries} | {token for entry in entries for _, token in entry.top}
    texts = {token: generator.tokenizer.decode([token], skip_special_tokens=False) for token in ids}
    return msgspec.structs.replace(sequence, token_texts=texts)


def _ignore(piece: Piece) -> None:
    """Nobody hears of it before the end."""
