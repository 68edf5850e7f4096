"""The mixture of the corpus: kinds of documents and their shares. `cases(seed)` is endless and reproducible."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import extraction, facts, judging, labels, lists, react, reading, talk, thoughts, tools
from .case import Case
from .draw import Draw

Maker = Callable[[Draw], Case]
Shares = dict[Maker, int]

# Shares of documents, not of tokens: a fact is 20 tokens, a tool chat 200.
SHARES = {
    facts.raw: 24,
    facts.chat: 16,
    facts.statements: 10,
    facts.pages: 4,
    extraction.raw: 6,
    extraction.chat: 9,
    extraction.single: 4,
    extraction.dialogue: 1,
    react.raw: 11,
    tools.chat: 12,
    judging.yes_no: 7,
    judging.passage_yes_no: 3,
    judging.choice: 6,
    labels.sentiment: 3,
    labels.topic: 3,
    labels.urgency: 2,
    judging.rating: 4,
    reading.passage: 6,
    reading.documents: 4,
    lists.three_facts: 2,
    lists.tips: 2,
    lists.one_tip: 1,
    lists.outline: 3,
    lists.summary: 2,
    lists.merge: 1,
    talk.small_talk: 3,
    talk.memory: 5,
    talk.telling: 3,
    thoughts.propose: 2,
    thoughts.is_step_correct: 2,
    thoughts.vote: 2,
}
# Later, what is learnt late: copying into records, comparing a claim with a fact, finding the right document.
HARD_SHARES = SHARES | {
    facts.raw: 14,
    facts.chat: 10,
    facts.statements: 4,
    facts.pages: 2,
    extraction.raw: 7,
    extraction.chat: 10,
    extraction.single: 5,
    extraction.prose: 12,
    tools.chat: 14,
    judging.yes_no: 10,
    judging.many_claims: 8,
    judging.passage_yes_no: 7,
    judging.choice: 7,
    judging.rating: 8,
    labels.priority: 3,
    reading.passage: 8,
    reading.documents: 8,
    talk.memory: 6,
    thoughts.is_step_correct: 4,
    thoughts.vote: 4,
}
LATE_SHARES = HARD_SHARES | {
    extraction.single: 9,
    judging.yes_no: 14,
    judging.many_claims: 14,
    judging.passage_yes_no: 12,
    judging.choice: 9,
    labels.priority: 5,
    reading.passage: 8,
    reading.documents: 12,
    thoughts.is_step_correct: 6,
    thoughts.vote: 6,
}
WIDE_SHARES = LATE_SHARES | {facts.raw: 10, facts.chat: 8, react.raw: 9, extraction.prose: 14, reading.documents: 18}
LONG_SHARES = WIDE_SHARES | {reading.long_documents: 2, talk.long_memory: 2}
# Last, what is still weak: a verdict is one token, so it takes many documents to weigh as much as a record.
WEAK_SHARES = WIDE_SHARES | {
    facts.raw: 8,
    facts.chat: 6,
    extraction.raw: 12,
    extraction.chat: 16,
    extraction.prose: 18,
    judging.passage_yes_no: 20,
    judging.choice: 40,
    judging.rating: 40,
    reading.documents: 22,
    thoughts.vote: 12,
}
WEAK_LONG_SHARES = WEAK_SHARES | {reading.long_documents: 6, talk.long_memory: 6}
SKILLS = {
    "facts": [facts.raw, facts.chat],
    "extraction": [extraction.raw, extraction.chat, extraction.single, extraction.prose],
    "react": [react.raw],
    "tools": [tools.chat],
    "judging": [
        judging.yes_no,
        judging.many_claims,
        judging.passage_yes_no,
        judging.choice,
        labels.sentiment,
        labels.topic,
        labels.urgency,
        labels.priority,
        judging.rating,
    ],
    "reading": [reading.passage, reading.documents],
    "chat": [talk.small_talk, talk.memory, talk.telling],
    "lists": [lists.three_facts, lists.tips, lists.outline, lists.summary, lists.merge],
    "thoughts": [thoughts.is_step_correct, thoughts.vote],
    "long": [reading.long_documents, talk.long_memory],
}


def cases(seed: int, shares: Shares = SHARES, held_out: bool = False, wide: bool = False) -> Iterator[Case]:
    d = Draw(seed, held_out, wide)
    makers, weights = list(shares), list(shares.values())
    while True:
        yield d.rng.choices(makers, weights)[0](d)


def cases_of(skill: str, seed: int, count: int) -> list[Case]:
    """Generate held-out cases of one skill, its kinds in turn."""
    d, makers = Draw(seed, held_out=True, wide=True), SKILLS[skill]
    return [makers[n % len(makers)](d) for n in range(count)]
