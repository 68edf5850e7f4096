"""A model that writes the shortest text that it finds under any constraint, and a word where there is none."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ramiform.lang.backends.channel import LocalBackend
from ramiform.lang.backends.model import ModelCall, ModelOutput, OnText
from ramiform.lang.backends.scripted import Scripted
from ramiform.lang.backends.transcript import Transcript, TranscriptPart
from ramiform.runtime.core.grammar_cache import GrammarCache
from ramiform.runtime.protocol import choices, decisions, session
from ramiform.runtime.protocol.core import Finish
from ramiform.runtime.protocol.sampling import Constraint, TokenLogprob

END = 256
PREFERRED = [*b'"}]', *b"7aBb-", *b":, {[", *b"tfn\n"]  # what ends a text first
LONGEST = 6  # letters or digits in a row
MOST = 400  # bytes


@cache
def grammars() -> GrammarCache:
    return GrammarCache([*(bytes([byte]) for byte in range(256)), None], [END])


@cache
def text_of(constraint: Constraint) -> str:
    """Return a text of a constraint, byte for byte what is most likely to end it."""
    matcher = grammars().get(constraint).result().matcher()
    written = bytearray()
    mask = np.zeros(math.ceil((END + 1) / 32), dtype=np.int32)
    while not (matcher.is_accepting() and written):
        matcher.mask(mask)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")
        is_long = len(written) >= LONGEST and written[-LONGEST:].isalnum()
        byte = next((one for one in PREFERRED if allowed[one] and not (is_long and chr(one).isalnum())), None)
        byte = int(np.flatnonzero(allowed)[0]) if byte is None else byte
        if written[-1:] == b'"' == bytes([byte]) and allowed[ord("a")]:
            byte = ord("a")  # strings are not empty where they need not be
        if byte == END or len(written) > MOST or not matcher.accept(byte):
            break
        written.append(byte)
    return written.decode()


class Obliging(LocalBackend):
    def __init__(self) -> None:
        super().__init__(num_threads=0)

    def generate(self, transcript: Transcript, gen: session.Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        constraint = gen.sampling.constraint
        text = " word" if constraint is None else text_of(constraint)
        if gen.stream and gen.n == 1:
            for at in range(0, len(text), 3):
                on_text(text[at : at + 3])
        one = session.Sequence(
            text=text,
            ids=[],
            prompt_tokens=1,
            completion_tokens=1,
            cached_tokens=0,
            finish=Finish("stop"),
            logprobs=None if gen.logprobs is None else [TokenLogprob(-1.0, 1)],
        )
        return ModelOutput([one] * gen.n, (TranscriptPart("generated", text),))

    def select(self, transcript: Transcript, select: session.Select, call: ModelCall) -> session.Choice:
        return choices.choose(select, [[TokenLogprob(-1.0 - at, 1)] for at in range(len(select.choices))])

    def decide(self, transcript: Transcript, questions: tuple[Any, ...], call: ModelCall) -> list[Any]:
        return [
            decisions.answer(question, [-1.0 - at for at in range(len(decisions.labels(question)))])
            for question in questions
        ]

    answer_call = Scripted.answer_call
