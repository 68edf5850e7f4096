"""Answers questions about a content with probabilities: scores each label of each question as its continuation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import msgspec

from ...programs.common_prefix import common_prefix_length
from ...protocol import decisions as protocol
from ...protocol.core import RequestOptions
from ...protocol.decisions import DecisionAnswer, Question
from ..text.generation import Generator
from ..text.scoring import Continuation, Scored, score, unify_shared_prefixes
from .content import TokenContent

_End = Literal["turn", "line", "token"]  # how an answer ends: with the assistant's message, the line, or an end token
BATCH_LABELS = 256  # labels submitted at once; the core's queue is bounded


@dataclass(frozen=True)
class Decided:
    """Answers in the questions' order, and token counts summed over all requests."""

    answers: list[DecisionAnswer]
    prompt_tokens: int
    cached_tokens: int


async def decide(
    generator: Generator,
    content: TokenContent,
    questions: Sequence[Question],
    *,
    options_for: Callable[[list[int], int], RequestOptions] = lambda tokens, num_kept: RequestOptions(),
) -> Decided:
    """Answer every question about `content`, which is not changed, independently of the other questions.

    With chat messages in the content a question is put in a user's message, the open one or a new one, and answered
    in the assistant's; otherwise it follows the text. An answer's mass is the probability of its label's tokens and of
    the token that ends the answer, so labels may have any length and be prefixes of each other.
    `options_for(tokens, num_kept)` gives the options of the requests; the content begins with the first `num_kept`
    tokens. Raises RequestError naming the question that is invalid.
    """
    protocol.check(questions)
    held = await content.fork().flush()  # pinned: the state's next request begins with these tokens
    batch: list[Continuation] = []
    for question in questions:
        batch += await _continuations(generator, content, question)
    first = options_for(batch[0].tokens, common_prefix_length(held, batch[0].tokens))
    others = msgspec.structs.replace(first, soft_pins=[])
    parts = iter(batch)
    scored: list[Scored] = []
    while chunk := list(islice(parts, BATCH_LABELS)):
        scored += await score(generator.core, chunk, others if scored else first)
    rest = iter(scored)
    answers = []
    for question in questions:
        logprobs = unify_shared_prefixes([part.logprobs for part in islice(rest, len(protocol.labels(question)))])
        answers.append(protocol.answer(question, [math.fsum(t.logprob for t in tokens) for tokens in logprobs]))
    return Decided(
        answers,
        prompt_tokens=sum(part.prompt_tokens for part in scored),
        cached_tokens=sum(part.cached_tokens for part in scored),
    )


async def _continuations(generator: Generator, content: TokenContent, question: Question) -> list[Continuation]:
    """Return, for each label of a question, what is scored: its tokens and those that end the answer."""
    asked = content.fork()
    in_chat = bool(asked.chat.roles)
    separator = "\n\n" if asked.ids or asked.pending else ""
    if in_chat and asked.chat.is_open and asked.chat.roles[-1] == "assistant":
        in_chat = False  # the question becomes a part of the assistant's text
    if in_chat:
        if asked.chat.is_open and asked.chat.roles[-1] == "user":
            asked.append_text(separator)
        else:
            if asked.chat.is_open:
                asked.end_role()
            asked.begin_role("user")
        asked.append_text(protocol.listing(question))
        asked.end_role()
        asked.begin_role("assistant")
        asked.take_lead()
        space = ""
    else:
        asked.append_text(f"{separator}Question: {protocol.listing(question)}\nAnswer:")
        space = " "
    labels = protocol.labels(question)
    end: _End = "turn" if in_chat else "token" if any("\n" in label for label in labels) else "line"
    encoded = [await _answer_ids(generator, asked, space + label, end) for label in labels]
    alone = await asked.fork().flush()
    start = common_prefix_length(alone, *encoded)
    return [Continuation(ids, start) for ids in encoded]


async def _answer_ids(generator: Generator, asked: TokenContent, label: str, end: _End) -> list[int]:
    """Return the ids of the content with a label, up to the first end token of the answer."""
    eos_ids = generator.tokenizer.eos_ids
    answered = asked.fork()
    answered.append_text(label)
    alone = await answered.fork().flush()
    match end:
        case "line":
            answered.append_text("\n")
        case "turn":
            answered.end_role()
        case "token":
            return [*alone, *eos_ids[:1]]
    ids = await answered.flush()
    return ids[: _first_end(ids, max(0, len(alone) - 1), eos_ids)]


def _first_end(ids: list[int], start: int, ends: Sequence[int]) -> int:
    """Return the index after the first end token from `start` on, or the number of ids if there is none.

    The model never writes what a chat template puts after an end token.
    """
    return next((index + 1 for index in range(start, len(ids)) if ids[index] in ends), len(ids))
