"""Questions about a content, answered by probabilities: one prefix, a branch a question, a label an answer.

Knows how a question is put to the model and where an answer ends; the arithmetic is in `protocol.decisions`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from ...protocol import decisions as protocol
from ...protocol.decisions import DecisionAnswer, Question
from ..text.common_prefix import common_prefix_length
from ..text.generation import Generator
from ..text.scoring import Continuation, RequestContext, Scored, score, unify_shared_prefixes
from .content import TokenContent

_End = Literal["turn", "line", "token"]  # what ends an answer: the assistant's message, a line, or the end token
BATCH = 256  # labels submitted at once; the core's queue is bounded


@dataclass(frozen=True)
class Decided:
    """Answers in the questions' order, and the sums over all the requests that it took."""

    answers: list[DecisionAnswer]
    prompt_tokens: int
    cached_tokens: int


async def decide(
    generator: Generator,
    content: TokenContent,
    questions: Sequence[Question],
    *,
    program: str | None = None,
    namespace: str = "",
    asker: Callable[[list[int], int], RequestContext] | None = None,
) -> Decided:
    """Ask every question about `content`, which is not changed, each as if it were the only one.

    With chat messages in the content a question is put in a user's message, the open one or a new one, and answered
    in the assistant's; otherwise it follows the text. An answer's mass is the probability of its label's tokens and of
    the token that ends the answer, so labels may be of any length and begin with one another.
    Raises RequestError naming the question that cannot be asked.
    """
    protocol.check(questions)
    held = await content.fork().flush()  # claimed: the next request for what the state holds begins with it
    batch: list[Continuation] = []
    for question in questions:
        batch += await _continuations(generator, content, question)
    first = (
        RequestContext(program=program, namespace=namespace)
        if asker is None
        else asker(batch[0].tokens, common_prefix_length(held, batch[0].tokens))
    )
    others = RequestContext(program=first.program, namespace=first.namespace, outlook=first.outlook)
    parts = iter(batch)
    scored: list[Scored] = []
    while some := list(islice(parts, BATCH)):
        scored += await score(generator.core, some, others if scored else first)
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
    """What is scored for each label of a question: its tokens and the end of the answer."""
    asked = content.fork()
    in_chat = bool(asked.chat.roles)
    separator = "\n\n" if asked.ids or asked.pending else ""
    if in_chat and asked.chat.is_open and asked.chat.roles[-1] == "assistant":
        in_chat = False  # a text in the assistant's own hand
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
    encoded = [await _ended(generator, asked, space + label, end) for label in labels]
    alone = await asked.fork().flush()
    start = common_prefix_length(alone, *encoded)
    return [Continuation(ids, start) for ids in encoded]


async def _ended(generator: Generator, asked: TokenContent, label: str, end: _End) -> list[int]:
    """The ids of the content with a label, to the first one that says that the answer is over."""
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
    """After the first end token from `start` on; all ids when there is none. What a chat template puts behind it is
    never the model's to write."""
    found: Iterator[int] = (index + 1 for index in range(start, len(ids)) if ids[index] in ends)
    return next(found, len(ids))
